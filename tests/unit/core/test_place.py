"""Who is placed, in which order, and where."""

from __future__ import annotations

import pytest

from building import cluster, do, finished, gpu, gpus_of, lease, node, run_pass, task
from dgpu.core.commands import DrainNode, LoseNode, ObserveGpu, ReleaseNode, ResumeNode, RunPass
from dgpu.core.decide.schedule import pass_due
from dgpu.core.decide.table import decide
from dgpu.core.digest import digest
from dgpu.core.events import TaskPlaced, TaskStarted
from dgpu.core.index.ranking import Ranking
from dgpu.core.model.demand import Demand
from dgpu.core.model.settings import Placement, Settings
from dgpu.core.model.task import Outcome, TaskStatus
from dgpu.core.state import next_wake_at


def test_higher_priority_goes_first_and_equals_go_by_age_over_all_shapes() -> None:
    state = cluster(
        node("n1", gpus=8),
        task(priority=10),
        task(priority=50, tenant="a"),
        task(priority=50, tenant="b"),
        task(priority=50, tenant="a"),
        task(priority=90),
    )
    assert run_pass(state) == [5, 2, 3, 4, 1]


def test_a_head_that_does_not_fit_holds_up_its_shape_and_no_other() -> None:
    """There are no reservations yet: what fits behind a large task goes on."""
    state = cluster(node("n1", gpus=2), task(2), lease(1, on="n1"), task(2), task(1), node("n2", gpus=1))
    assert run_pass(state) == [3]
    assert state.tasks[2].status is TaskStatus.PENDING


def test_a_task_gets_its_gpus_cpus_and_ram_on_one_node() -> None:
    state = cluster(node("n1", gpus=1, cpus=2), node("n2", gpus=1, cpus=64), node("n3", gpus=2, cpus=8))
    do(state, task(2, cpus=8, ram_mb=1_000))
    assert run_pass(state) == [1]
    granted = state.leases[1]
    assert (granted.node_id, granted.cpus_milli, granted.ram_mb) == ("n3", 8_000, 1_000)
    assert granted.gpu_ids == ("GPU-n3-0", "GPU-n3-1")
    do(state, task(0, cpus=16))
    assert run_pass(state) == [2]
    assert state.tasks[2].node_id == "n2"


def test_the_gpu_with_most_of_its_memory_free_is_chosen_then_the_largest_then_the_lowest_node_and_index() -> (
    None
):
    state = cluster(node("n1", gpus=2), node("n2", gpus=2), node("n3", gpus=1, memory_mb=8_192))
    do(state, ObserveGpu(gpu_id="GPU-n1-0", foreign_mb=1_000))
    do(state, task(count=5))
    run_pass(state)
    order = [state.tasks[number].gpu_ids[0] for number in (1, 2, 3, 4, 5)]
    assert order == ["GPU-n1-1", "GPU-n2-0", "GPU-n2-1", "GPU-n3-0", "GPU-n1-0"]


def test_memory_used_by_others_is_not_given_away() -> None:
    state = cluster(node("n1", gpus=1), task(memory_mb=16_384))
    do(state, ObserveGpu(gpu_id="GPU-n1-0", foreign_mb=1))
    assert run_pass(state) == []
    do(state, ObserveGpu(gpu_id="GPU-n1-0", foreign_mb=0))
    assert run_pass(state) == [1]


def test_a_model_may_be_one_of_several() -> None:
    mixed = (*gpus_of("n1", 1, model="T4"), gpu("x", index=1, model="V100"), gpu("y", index=2, model="A100"))
    state = cluster(node("n1", gpus=mixed), task(2, models=("A100", "V100")))
    run_pass(state)
    assert state.tasks[1].gpu_ids == ("x", "y")


def test_reserved_faulty_draining_and_offline_gpus_are_not_used() -> None:
    cards = (gpu("a", index=0, reserved=True), gpu("b", index=1, fault="ecc"))
    state = cluster(node("n1", gpus=cards), node("n2"), node("n3"), task())
    do(state, DrainNode(node_id="n2"))
    do(state, LoseNode(node_id="n3", reason="silent"))
    assert run_pass(state) == []
    assert run_pass(state, full=True) == []
    do(state, ResumeNode(node_id="n2"))
    assert run_pass(state) == [1]
    assert state.tasks[1].node_id == "n2"


def test_tasks_without_gpus_are_spread_over_the_nodes() -> None:
    state = cluster(node("n1"), node("n2"), node("n3"), task(0, count=6))
    run_pass(state)
    assert [state.tasks[number].node_id for number in range(1, 7)] == ["n1", "n2", "n3"] * 2


def test_a_node_takes_a_bounded_number_of_tasks_that_ask_for_nothing() -> None:
    state = cluster(node("n1"), task(0, count=5), settings=Settings(max_leases=3))
    assert run_pass(state) == [1, 2, 3]
    do(state, finished(2))
    assert run_pass(state) == [4]


def test_a_pass_places_no_more_than_its_limit_and_the_next_goes_on() -> None:
    state = cluster(node("n1", gpus=8), task(count=5))
    assert run_pass(state, limit=2) == [1, 2]
    assert pass_due(state)
    assert run_pass(state) == [3, 4, 5]
    assert not pass_due(state)


def test_after_a_pass_nothing_is_due_until_something_changes() -> None:
    state = cluster(node("n1", gpus=1), task(count=3))
    run_pass(state)
    assert not pass_due(state)
    do(state, finished(1))
    assert pass_due(state)
    assert run_pass(state) == [2]


def test_what_was_blocked_is_woken_by_the_node_that_can_take_it() -> None:
    state = cluster(node("n1", gpus=2), task(2), lease(1, on="n1"), task(2), task(1, memory_mb=8_192))
    assert run_pass(state) == []
    do(state, node("n2", gpus=1))
    assert run_pass(state) == [3]
    do(state, finished(1))
    assert run_pass(state) == [2]


def test_a_new_task_of_a_blocked_shape_waits_behind_and_of_another_is_tried() -> None:
    state = cluster(node("n1", gpus=1), task(count=2))
    run_pass(state)
    do(state, task(priority=90))
    do(state, task(0))
    assert run_pass(state) == [4]
    do(state, finished(1))
    assert run_pass(state) == [3]


def test_a_task_that_backs_off_lets_others_pass_and_comes_back_in_its_place() -> None:
    state = cluster(node("n1", gpus=1), task(count=3))
    run_pass(state)
    do(state, finished(1, outcome=Outcome.NODE_FAULT))
    due_at = state.tasks[1].eligible_at
    assert next_wake_at(state) == due_at == state.last_at + 1_000
    assert run_pass(state, at=due_at - 1) == [2]
    do(state, finished(2), at=due_at)
    assert run_pass(state, at=due_at) == [1]
    assert next_wake_at(state) is None


def test_an_allocation_is_placed_and_started_at_once() -> None:
    """No agent ever hears of it."""
    state = cluster(node("n1"), task(allocation=True))
    placed, started = do(state, RunPass())
    assert isinstance(placed, TaskPlaced)
    assert isinstance(started, TaskStarted)
    assert state.leases[placed.lease_id].started


def test_deciding_a_pass_gives_what_the_pass_does_and_changes_nothing() -> None:
    state = cluster(node("n1", gpus=2), task(count=2), task(priority=90))
    before = digest(state)
    decided = decide(state, RunPass(at=state.last_at))
    assert [event.task_id for event in decided] == [3, 1]
    assert digest(state) == before
    assert decide(state, RunPass(at=state.last_at, limit=1)) == decided[:1]
    assert do(state, RunPass(), at=state.last_at) == decided


def test_a_lease_id_is_never_used_twice() -> None:
    state = cluster(node("n1"), task())
    run_pass(state)
    do(state, LoseNode(node_id="n1", reason="silent"))
    do(state, ReleaseNode(node_id="n1", reason="lease over"))
    do(state, node("n1", boot="boot-2"))
    run_pass(state)
    assert list(state.leases) == [2]
    assert state.tasks[1].attempt == 2


def test_a_task_that_comes_back_goes_before_younger_ones_of_every_shape() -> None:
    state = cluster(node("n1"), task(tenant="a"), task(tenant="b", count=2), task(tenant="a"))
    assert run_pass(state) == [1]
    do(state, finished(1, outcome=Outcome.STOPPED))
    assert run_pass(state) == [1]


def test_cpus_and_ram_come_back_with_the_lease() -> None:
    state = cluster(node("n1", cpus=4, ram_mb=1_000), task(0, cpus=3, ram_mb=600, count=2))
    assert run_pass(state) == [1]
    do(state, finished(1))
    assert run_pass(state) == [2]


@pytest.mark.parametrize(("memory_mb", "goes_to"), [(1_000, "small"), (6_000, "large-0")])
def test_memory_decides_for_a_share_where_a_card_is_so_small_that_it_takes_more_of_it(
    memory_mb: int, goes_to: str
) -> None:
    """Among many idle nodes: a card that is shared already is liked best, but half of a small one may be too little."""
    state = cluster(node("small", gpus=1, memory_mb=8_192), task(share=0.5))
    assert run_pass(state) == [1]
    for number in range(10):
        do(state, node(f"large-{number}", gpus=1, memory_mb=65_536))
    do(state, task(share=0.5, memory_mb=memory_mb))
    assert run_pass(state) == [2]
    assert state.tasks[2].node_id == goes_to


def test_when_packing_a_task_without_gpus_goes_where_no_gpu_is_left() -> None:
    state = cluster(settings=Settings(placement=Placement.PACK))
    do(state, node("n1", gpus=1, cpus=8))
    do(state, task(1, count=2))
    assert run_pass(state) == [1]
    do(state, task(0, cpus=4, count=3))
    assert run_pass(state) == [3, 4]
    do(state, finished(1))
    assert run_pass(state) == [2]
    do(state, finished(3))
    assert run_pass(state) == [5]
    assert state.tasks[5].node_id == "n1"


def test_a_node_that_promised_more_ram_than_it_has_left_still_takes_tasks_that_ask_for_none() -> None:
    """It came back with less RAM than its task holds. Tasks that do not count RAM are no concern of it."""
    state = cluster(node("n1", gpus=2, ram_mb=8_192), task(ram_mb=8_192))
    run_pass(state)
    do(state, node("n1", gpus=2, ram_mb=4_096, held=(1,)))
    do(state, task())
    do(state, task(ram_mb=256))
    assert run_pass(state) == [2]


def test_an_index_of_nodes_stays_small_however_often_they_change() -> None:
    """A scheduler runs for months."""
    state = cluster(node("n1"))
    (room,) = state.rooms.by_node.values()
    cards, changes = room.idle, []
    ranking = Ranking(Demand(gpus=1), [room], 0)
    for number in range(1_000):
        room.idle = [] if number % 2 else cards
        changes.append(room)
        ranking.catch_up(changes)
        assert len(ranking.heap) < 100


def test_when_packing_a_node_of_several_models_gives_each_of_them() -> None:
    cards = (gpu("first", model="V100"), gpu("second", index=1, model="T4"))
    state = cluster(node("n1", gpus=cards), settings=Settings(placement=Placement.PACK))
    do(state, task(models=("T4",)))
    do(state, task(models=("V100",)))
    assert run_pass(state) == [1, 2]
    assert [state.tasks[number].gpu_ids for number in (1, 2)] == [("second",), ("first",)]
