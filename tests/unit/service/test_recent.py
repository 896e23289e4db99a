"""The last entries are found, older ones are not, and memory stays."""

from __future__ import annotations

import tracemalloc

from dgpu.core.events import TaskPlaced
from dgpu.core.model.ids import GpuId, LeaseId, NodeId, TaskId
from dgpu.service.machine.outputs import CommittedGroup
from dgpu.service.task_output.intake import MAX_HOLDERS, OutputIntake
from dgpu.service.task_output.recent import Recent

_STEP = MAX_HOLDERS // 4


def test_the_last_entries_are_found_and_never_more_than_the_limit() -> None:
    recent = Recent[int, str](10)
    for number in range(100):
        recent.put(number, str(number))
        assert [recent.get(each) for each in range(max(0, number - 4), number + 1)] == [
            str(each) for each in range(max(0, number - 4), number + 1)
        ]
        assert len(recent) <= 10
    assert recent.get(89) is None


def test_the_latest_value_counts_and_a_dropped_entry_is_gone() -> None:
    recent = Recent[str, int](4)
    for key, value in (("a", 1), ("b", 2), ("a", 3), ("c", 4)):
        recent.put(key, value)
    assert recent.get("a") == 3
    recent.drop("a")
    assert recent.get("a") is None, "not the older value either"
    assert recent.get("c") == 4


def test_the_memory_of_the_intake_stays_once_it_knows_as_many_leases_as_it_keeps() -> None:
    """Its map was allowed 100,000 leases, and grew a table for 350,000."""
    intake = OutputIntake(session_of=lambda _: "")
    placed = 0

    def place_more() -> int:
        nonlocal placed
        for _ in range(_STEP):
            placed += 1
            event = TaskPlaced(
                at=1,
                task_id=TaskId(placed),
                lease_id=LeaseId(placed),
                node_id=NodeId("n1"),
                gpu_ids=(GpuId("g1"),),
                attempt=1,
            )
            intake.on_input(CommittedGroup(index=placed, events=(event,)), 1)
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        full = max(place_more() for _ in range(4))
        later = max(place_more() for _ in range(8))
    finally:
        tracemalloc.stop()
    assert later <= 1.05 * full
    assert intake._holders.get(LeaseId(placed)) is not None
    assert intake._holders.get(LeaseId(1)) is None
