"""Borrowed tasks are stopped where what comes free is enough: to the last megabyte of RAM and the last CPU."""

from __future__ import annotations

import pytest

from building import cluster, do, lease, node, run_pass, task
from dgpu.core.commands import RunPass
from dgpu.core.events import TaskStopRequested
from dgpu.core.model.quota import Quota, QuotaMode, Reclaim
from dgpu.core.model.settings import Settings
from dgpu.core.model.task import Pool
from dgpu.core.rules.reclaim import _Seeker

STOP = Settings(
    memory_margin_mb=0, quota=Quota(online_ppm=1_000_000, mode=QuotaMode.BORROW, reclaim=Reclaim.STOP)
)


def stopped(asked: dict[str, int], *, running: dict[str, int], **free: int) -> list[int]:
    """On a node of two GPUs with so much free beside two borrowed tasks: those that an online task stops."""
    sizes = {
        "cpus": 2 * running.get("cpus", 0) + free.get("cpus", 0),
        "ram_mb": 2 * running.get("ram_mb", 0) + free.get("ram_mb", 0),
    }
    state = cluster(
        node("n1", gpus=2, cpus=sizes["cpus"] or 8, ram_mb=sizes["ram_mb"] or 8_192), settings=STOP
    )
    do(state, task(1, count=2, **running))
    assert run_pass(state) == [1, 2]
    do(state, task(1, pool=Pool.ONLINE, **asked))
    return [event.task_id for event in do(state, RunPass()) if isinstance(event, TaskStopRequested)]


@pytest.mark.parametrize(("asked", "expected"), [(5_120, [2]), (5_376, [2, 1]), (9_216, [2, 1])])
def test_ram_that_is_exactly_enough_is_enough(asked: int, expected: list[int]) -> None:
    """Two borrowed tasks hold 4,096 MB each, 1,024 MB are free."""
    running = {"ram_mb": 4_096}
    found = stopped({"ram_mb": asked}, running=running, ram_mb=1_024)
    assert sorted(found) == sorted(expected)


@pytest.mark.parametrize(("asked", "expected"), [(5, [2]), (6, [2, 1]), (9, [2, 1])])
def test_cpus_that_are_exactly_enough_are_enough(asked: int, expected: list[int]) -> None:
    """Two borrowed tasks hold four each, one is free."""
    assert sorted(stopped({"cpus": asked}, running={"cpus": 4}, cpus=1)) == sorted(expected)


def test_a_task_is_stopped_only_on_a_node_that_the_online_task_accepts() -> None:
    """A stop on another node would lose work, and the online task would still wait."""
    state = cluster(node("a"), node("b"), task(count=2), lease(1, on="b"), lease(2, on="a"), settings=STOP)
    do(state, task(pool=Pool.ONLINE, constraints=(("node", True, ("b",)),)))
    stops = [event.task_id for event in do(state, RunPass()) if isinstance(event, TaskStopRequested)]
    assert stops == [1], "task 2 is newer, and would be stopped first"


def test_a_stop_that_a_later_one_makes_needless_is_not_made() -> None:
    """The newest tasks lose the least work: the one on b for the first online task, then the one on both GPUs of a for the
    second. Both GPUs of a serve both online tasks.
    """
    state = cluster(node("a", gpus=2), node("b", gpus=2), task(count=2), lease(1, on="b"), settings=STOP)
    do(state, task(2), at=state.last_at + 600_000)
    lease(3, on="a")(state)
    lease(2, on="b")(state)
    do(state, task(count=2, pool=Pool.ONLINE))
    stops = [event.task_id for event in do(state, RunPass()) if isinstance(event, TaskStopRequested)]
    assert stops == [3]


def test_one_pass_asks_for_all_stops_that_are_due() -> None:
    """Batch holds six GPUs and owns two. Four are stopped for: one, one, and a lease of two, whose second GPU is for
    the fourth online task. It is served although no more GPUs are borrowed by then.
    """
    quota = Quota(online_ppm=666_667, mode=QuotaMode.BORROW, reclaim=Reclaim.STOP)
    nodes = [node(name, gpus=3) for name in ("a", "b")]
    state = cluster(*nodes, task(2, count=2), settings=Settings(memory_margin_mb=0, quota=quota))
    lease(1, on="a")(state)
    lease(2, on="b")(state)
    do(state, task(count=2), at=state.last_at + 1_000)
    assert run_pass(state) == [3, 4]
    do(state, task(count=4, pool=Pool.ONLINE))
    stops = [event.task_id for event in do(state, RunPass()) if isinstance(event, TaskStopRequested)]
    assert sorted(stops) == [2, 3, 4]
    assert not do(state, RunPass())


@pytest.mark.parametrize(("spare_milli", "taken"), [(499, False), (500, True)])
def test_a_share_may_take_exactly_the_rest_of_its_quota(spare_milli: int, taken: bool) -> None:
    state = cluster(node("n1"), task(pool=Pool.ONLINE, share=0.5))
    (card,) = state.rooms.by_node["n1"].cards.values()
    seeker = _Seeker(state, 1, state.queue.line_of(state.tasks[1]), spare_milli)
    assert seeker.takes(card) is taken
