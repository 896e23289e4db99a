"""What the passing of time does."""

from __future__ import annotations

from building import START, cluster, do, finished, node, restart, run_pass, task
from dgpu.core.commands import BeginEpoch, CancelTasks, Tick
from dgpu.core.decide.time import forget_due
from dgpu.core.events import KeysForgotten, TaskFinished, TasksForgotten
from dgpu.core.invariants import check_invariants
from dgpu.core.model.settings import Settings
from dgpu.core.model.task import TaskStatus
from dgpu.core.state import ClusterState, next_tick_at

LATER = START + 10_000_000


def test_an_allocation_ends_when_its_time_is_over() -> None:
    state = cluster(node("n1"), task(allocation=True, timeout_ms=60_000))
    run_pass(state)
    over_at = state.last_at + 60_000
    assert next_tick_at(state) == over_at
    assert do(state, Tick(), at=over_at - 1) == ()
    (event,) = do(state, Tick(), at=over_at + 5)
    assert isinstance(event, TaskFinished)
    assert (event.status, event.reason, event.finished_at) == (TaskStatus.SUCCESS, "time_over", over_at)
    assert state.leases == {}
    assert next_tick_at(state) is None


def test_an_allocation_cancelled_before_does_not_end_again() -> None:
    state = cluster(node("n1"), task(allocation=True, timeout_ms=60_000))
    run_pass(state)
    do(state, CancelTasks(task_ids=(1,)))
    assert next_tick_at(state) is None
    assert do(state, Tick(), at=state.last_at + 60_000) == ()


def test_tasks_that_are_over_are_forgotten_when_old_once_the_history_has_them() -> None:
    state = cluster(task(count=2), settings=Settings(keep_finished_ms=1_000))
    do(state, CancelTasks())
    ended_at = state.last_at
    assert do(state, Tick(history_at=ended_at - 1), at=LATER) == ()
    assert do(state, Tick(history_at=LATER), at=ended_at + 999) == ()
    (event,) = do(state, Tick(history_at=ended_at), at=LATER)
    assert event == TasksForgotten(at=LATER, task_ids=(1, 2))
    assert (state.tasks, state.shapes) == ({}, {})
    assert state.accounts.by_tenant == {}, "a tenant without settings is forgotten with its last task"


def test_the_oldest_are_forgotten_when_there_are_too_many() -> None:
    state = cluster(task(count=5), settings=Settings(keep_finished=2))
    for number in (4, 2, 5, 1):
        do(state, CancelTasks(task_ids=(number,)))
    do(state, Tick(history_at=state.last_at))
    assert sorted(state.tasks) == [1, 3, 5]


def test_a_rebuilt_state_forgets_the_oldest_first_too() -> None:
    """A snapshot lists tasks by number. They may have ended in another order."""
    state = cluster(task(count=5), settings=Settings(keep_finished=2))
    for number in (4, 2, 5, 1):
        do(state, CancelTasks(task_ids=(number,)))
    rebuilt = ClusterState.from_parts(state.parts())
    do(rebuilt, Tick(history_at=rebuilt.last_at))
    assert sorted(rebuilt.tasks) == [1, 3, 5]


def test_an_end_reported_late_is_kept_until_the_history_has_its_report() -> None:
    """The node was cut off: the task ended long before anybody heard of it."""
    state = cluster(node("n1"), task(), settings=Settings(keep_finished=0))
    run_pass(state)
    do(state, finished(1, ago_ms=50_000), at=state.last_at + 60_000)
    assert state.tasks[1].finished_at < state.last_at
    assert do(state, Tick(history_at=state.last_at - 1)) == ()
    do(state, Tick(history_at=state.last_at))
    assert state.tasks == {}


def test_a_task_is_not_forgotten_twice_when_another_ends_in_the_same_moment() -> None:
    """An allocation whose time is over in the very tick that forgets stands before the forgotten in the order of ends."""
    state = cluster(node("n1"), task(allocation=True, timeout_ms=60_000), settings=Settings(keep_finished=0))
    run_pass(state)
    over_at = state.tasks[1].started_at + 60_000
    do(state, task(), at=over_at)
    do(state, CancelTasks(task_ids=(2,)), at=over_at)
    do(state, Tick(history_at=over_at), at=over_at)
    assert list(state.tasks) == [1]
    check_invariants(state)  # nothing of 2 is left in the order of ends
    do(state, Tick(history_at=over_at), at=over_at + 1)
    assert state.tasks == {}


def test_forgetting_goes_in_portions() -> None:
    state = cluster(task(count=2_500), settings=Settings(keep_finished=0))
    do(state, CancelTasks())
    sizes = []
    while state.tasks:
        (event,) = do(state, Tick(history_at=LATER), at=LATER)
        sizes.append(len(event.task_ids))
    assert sizes == [1_000, 1_000, 500]


def test_a_shape_is_known_as_long_as_a_task_has_it() -> None:
    state = cluster(task(count=2), settings=Settings(keep_finished=0))
    do(state, CancelTasks(task_ids=(1,)))
    do(state, Tick(history_at=LATER))
    assert len(state.shapes) == 1
    do(state, CancelTasks(task_ids=(2,)))
    do(state, Tick(history_at=LATER))
    assert state.shapes == {}
    do(state, task())
    assert list(state.shapes) == [2]


def test_keys_are_forgotten_after_their_time() -> None:
    state = cluster(task(key="a"), settings=Settings(idempotency_ms=1_000))
    do(state, task(key="b"), at=state.last_at + 500)
    assert do(state, Tick(), at=state.last_at + 499) == ()
    do(state, Tick(), at=state.last_at + 500)
    assert state.key_ring.find("a") is None
    assert state.key_ring.find("b") is not None


def test_keys_go_in_portions_too_and_those_of_one_moment_together() -> None:
    state = cluster(settings=Settings(idempotency_ms=1_000))
    for number in range(1_500):
        do(state, task(key=str(number)), at=START + number // 3)
    left = []
    while state.key_ring.count:
        (event,) = do(state, Tick(), at=LATER)
        assert isinstance(event, KeysForgotten)
        left.append(state.key_ring.count)
    assert left == [501, 0]


def test_a_new_epoch_brings_its_settings() -> None:
    state = cluster()
    do(state, BeginEpoch(settings=Settings(max_leases=7)))
    assert (state.epoch, state.settings.max_leases) == (2, 7)


def test_a_higher_limit_of_tasks_on_a_node_lets_waiting_ones_in() -> None:
    state = cluster(node("n1"), task(0, count=3), settings=Settings(max_leases=1))
    assert run_pass(state) == [1]
    restart(state, Settings(max_leases=2))
    assert run_pass(state) == [2]


def test_a_tick_is_due_when_the_first_of_the_ended_tasks_is_old_enough() -> None:
    """The service asks before it sends one."""
    state = cluster(node("n1"), task(count=2), settings=Settings(keep_finished=10, keep_finished_ms=1_000))
    assert not forget_due(state, state.last_at, state.last_at)
    run_pass(state)
    do(state, finished(1))
    at = state.last_at
    assert not forget_due(state, at, at + 999)
    assert forget_due(state, at, at + 1_000)
    assert not forget_due(state, at - 1, at + 1_000), "its history is not stored yet"
