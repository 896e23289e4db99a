"""What people do to tasks that wait: hold, release, another priority. And what time does: ageing."""

from __future__ import annotations

from msgspec.structs import replace

from building import START, cluster, do, finished, node, on, restart, run_pass, task, tried
from dgpu.core.commands import BeginEpoch, CancelTasks, ChangePriority, HoldTasks, ReadWallClock, ReleaseTasks
from dgpu.core.foresight.explain import explain
from dgpu.core.foresight.sooner import sooner
from dgpu.core.invariants import check_invariants
from dgpu.core.model.settings import Settings
from dgpu.core.model.task import Outcome
from dgpu.core.model.wall_span import WallSpan
from dgpu.core.rejections import TaskNotWaiting, UnknownArray, UnknownTask
from dgpu.core.rules.order import position, queue
from dgpu.core.state import next_wake_at

MINUTE_MS = 60_000


def test_a_held_task_lets_others_pass() -> None:
    state = cluster(node("n1", gpus=1), task(count=2))
    do(state, HoldTasks(task_ids=(1,)))
    assert explain(state, 1, state.last_at).blockers[0].code == "held"
    assert run_pass(state) == [2]
    check_invariants(state)


def test_a_task_released_after_a_gpu_was_freed_finds_it() -> None:
    state = cluster(node("n1", gpus=1), task(), task(cpus=1))
    assert run_pass(state) == [1], "the other was refused"
    do(state, HoldTasks(task_ids=(2,)))
    do(state, finished(1))
    assert run_pass(state) == [], "nobody was there to be tried with the freed GPU"
    do(state, ReleaseTasks(task_ids=(2,)))
    assert run_pass(state) == [2]
    check_invariants(state)


def test_those_refused_are_let_in_by_their_order() -> None:
    """Of three demands that a freed GPU could hold, the one that comes first gets it, whoever was refused last."""
    state = cluster(node("n1", gpus=1), task(priority=90))
    run_pass(state)
    for cpus, priority in ((1, 50), (2, 80), (3, 10)):
        do(state, task(cpus=cpus, priority=priority))
        assert run_pass(state) == []
    started = []
    for lease_id in (1, 2, 3):
        do(state, finished(lease_id))
        started += run_pass(state, limit=1)
    assert started == [3, 2, 4]
    check_invariants(state)


def test_a_released_task_is_where_it_was() -> None:
    state = cluster(node("n1", gpus=1), task(count=2, held=True))
    assert run_pass(state) == []
    do(state, ReleaseTasks(task_ids=(2,)))
    do(state, ReleaseTasks(task_ids=(1,)))
    assert queue(state, limit=10) == [1, 2]
    assert run_pass(state) == [1]
    check_invariants(state)


def test_holding_twice_changes_nothing() -> None:
    state = cluster(node("n1", gpus=1), task())
    assert do(state, HoldTasks(task_ids=(1,)))
    assert do(state, HoldTasks(task_ids=(1,))) == ()
    do(state, ReleaseTasks(task_ids=(1,)))
    assert do(state, ReleaseTasks(task_ids=(1,))) == ()


def test_what_runs_or_is_over_cannot_be_held() -> None:
    state = cluster(node("n1", gpus=1), task())
    run_pass(state)
    assert tried(state, HoldTasks(task_ids=(1,))) == TaskNotWaiting(task_id=1, status="running")
    assert tried(state, ReleaseTasks(task_ids=(9,))) == UnknownTask(task_id=9)
    assert tried(state, HoldTasks(array_id=1)) == UnknownArray(array_id=1)


def test_a_whole_array_is_held_and_released() -> None:
    state = cluster(node("n1", gpus=4), task(array="0-3", held=True))
    assert run_pass(state) == []
    do(state, ReleaseTasks(array_id=1))
    assert run_pass(state) == [1, 2, 3, 4]


def test_a_back_off_goes_on_when_a_task_is_released() -> None:
    state = cluster(node("n1", gpus=1), task())
    run_pass(state)
    do(state, finished(1, outcome=Outcome.NODE_FAULT))
    do(state, HoldTasks(task_ids=(1,)))
    do(state, ReleaseTasks(task_ids=(1,)))
    check_invariants(state)
    assert run_pass(state) == []
    assert run_pass(state, at=state.tasks[1].eligible_at) == [1]


def test_a_task_that_is_held_and_waits_for_another_needs_both() -> None:
    state = cluster(node("n1", gpus=2), task(), task(held=True, after=(on(1),)))
    run_pass(state)
    do(state, finished(1))
    assert run_pass(state) == []
    do(state, ReleaseTasks(task_ids=(2,)))
    assert run_pass(state) == [2]
    check_invariants(state)


def test_a_task_waits_for_the_time_that_it_asked_for() -> None:
    state = cluster(node("n1", gpus=2), task(count=2, begins_ms=START + 60_000), task(begins_ms=START - 5))
    assert run_pass(state) == [3], "the past is no reason to wait"
    blocker = explain(state, 1, START + 10_000).blockers[0]
    assert sooner(state, 1, START + 10_000) == (), "no other shape would start before that time"
    assert (blocker.code, blocker.detail) == ("begin_time", "it begins in 50 s at the earliest, as requested")
    check_invariants(state)
    restart(state)
    assert run_pass(state, at=START + 59_999) == []
    assert next_wake_at(state) == START + 60_000
    assert run_pass(state, at=START + 60_000) == [1]
    check_invariants(state)


def test_a_begin_time_follows_the_wall_clock_of_the_next_boot() -> None:
    """At most 12 hours of a pause are counted. A machine that was off for longer would start the task days later."""
    state = cluster(
        node("n1", gpus=2), task(begins_ms=START + 60_000), task(begins_ms=START + 60_000, held=True)
    )
    later = WallSpan(boot_id="b2", boot_offset_ms=0, wall_offset_ms=50_000)
    do(state, ReadWallClock(span=later), at=START + 100)
    check_invariants(state)
    assert next_wake_at(state) == START + 10_000
    do(state, ReleaseTasks(task_ids=(2,)), at=START + 200)
    assert run_pass(state, at=START + 9_999) == []
    assert run_pass(state, at=START + 10_000) == [1, 2]
    check_invariants(state)


def test_a_retry_does_not_wait_for_the_begin_time_again() -> None:
    state = cluster(node("n1", gpus=1), task(begins_ms=START + 60_000))
    assert run_pass(state, at=START + 60_000) == [1]
    do(state, finished(1, outcome=Outcome.NODE_FAULT), at=START + 61_000)
    assert state.tasks[1].eligible_at == START + 62_000
    set_back = WallSpan(boot_id="b2", boot_offset_ms=0, wall_offset_ms=-50_000)
    do(state, ReadWallClock(span=set_back), at=START + 61_500)
    assert explain(state, 1, START + 61_500).blockers[0].code == "back_off"
    assert run_pass(state, at=START + 62_000) == [1]


def test_a_held_task_can_be_cancelled() -> None:
    state = cluster(node("n1"), task(held=True))
    do(state, CancelTasks(task_ids=(1,)))
    check_invariants(state)
    assert not state.tasks[1].held


def test_another_priority_is_another_place_in_the_queue() -> None:
    state = cluster(node("n1", gpus=1), task(count=3))
    do(state, ChangePriority(task_ids=(3,), priority=60))
    assert queue(state, limit=10) == [3, 1, 2]
    assert position(state, 3) == 1
    check_invariants(state)
    assert run_pass(state) == [3]


def test_a_task_that_backs_off_keeps_doing_so_with_another_priority() -> None:
    state = cluster(node("n1", gpus=1), task())
    run_pass(state)
    do(state, finished(1, outcome=Outcome.NODE_FAULT))
    do(state, ChangePriority(task_ids=(1,), priority=60))
    check_invariants(state)
    assert run_pass(state, at=state.tasks[1].eligible_at - 1) == []
    assert run_pass(state, at=state.tasks[1].eligible_at) == [1]


AGEING = Settings(ageing_ms=MINUTE_MS)


def test_without_ageing_priority_alone_decides() -> None:
    state = cluster(node("n1", gpus=1), task(priority=10))
    do(state, task(priority=11), at=START + 1_000 * MINUTE_MS)
    assert queue(state, limit=10) == [2, 1]


def test_with_ageing_a_minute_is_worth_a_point() -> None:
    state = cluster(node("n1", gpus=1), settings=AGEING)
    at = 10 * MINUTE_MS + START // MINUTE_MS * MINUTE_MS
    do(state, task(priority=10), at=at)
    do(state, task(priority=14), at=at + 3 * MINUTE_MS)
    do(state, task(priority=14), at=at + 5 * MINUTE_MS)
    assert queue(state, limit=10) == [2, 1, 3]
    assert [position(state, each) for each in (2, 1, 3)] == [1, 2, 3]
    assert run_pass(state) == [2]
    check_invariants(state)


def test_low_priority_comes_first_in_the_end() -> None:
    """A stream of urgent tasks, one each minute on a single GPU, does not starve an old one for ever."""
    state = cluster(node("n1", gpus=1), settings=AGEING)
    do(state, task(priority=0))
    waited = 0
    while state.tasks[1].attempt == 0:
        at = state.last_at + MINUTE_MS
        do(state, task(priority=100), at=at)
        do(state, task(priority=100), at=at)
        running = [each.lease_id for each in state.tasks.values() if each.lease_id]
        for lease_id in running:
            do(state, finished(lease_id))
        run_pass(state)
        waited += 1
        assert waited < 400
    assert waited >= 100


def test_a_change_of_the_setting_holds_for_those_that_wait_already() -> None:
    state = cluster(node("n1", gpus=1), task(priority=10))
    do(state, task(priority=11), at=START + 1_000 * MINUTE_MS)
    do(state, BeginEpoch(settings=AGEING))
    assert queue(state, limit=10) == [1, 2]
    check_invariants(state)
    restart(state, replace(AGEING, ageing_ms=0))
    assert run_pass(state) == [2]
