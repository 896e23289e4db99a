"""Large tasks in a stream of small ones: reservations, and who may run ahead of them."""

from __future__ import annotations

from building import START, cluster, do, finished, node, restart, returning, run_pass, task
from dgpu.core.commands import BeginEpoch, CancelTasks, HoldTasks, LoseNode, ReportStarted, RunPass
from dgpu.core.decide.schedule import pass_due
from dgpu.core.digest import digest
from dgpu.core.events import Event
from dgpu.core.foresight.explain import Explanation, explain
from dgpu.core.foresight.forecast import forecast
from dgpu.core.foresight.forward import end_task
from dgpu.core.model.quota import Quota
from dgpu.core.model.run_times import RunTimes, kind_of
from dgpu.core.model.settings import Settings
from dgpu.core.model.task import Pool, Restart, TaskStatus
from dgpu.core.model.tenant import Tenant
from dgpu.core.replay import replay
from dgpu.core.state import ClusterState

MINUTE = 60_000
OVER_MS = 11_000  # kill grace and release
MINUTE_CLASS = 81_920  # how long a task of a minute lasts in plans: with these, rounded up to its time class
RULES = Settings(memory_margin_mb=0, reservations=8)
ONE_POOL = Settings(memory_margin_mb=0, reservations=8, quota=Quota(online_ppm=1_000_000))


def running(state: ClusterState, task_id: int) -> bool:
    return state.tasks[task_id].status is TaskStatus.RUNNING


def why(state: ClusterState, task_id: int, at: int | None = None) -> Explanation:
    told = explain(state, task_id, at or state.last_at)
    assert isinstance(told, Explanation)
    return told


def end(state: ClusterState, task_id: int, at: int) -> list[int]:
    """A task ends, and the pass after it places these."""
    end_task(state, state.tasks[task_id], at)
    return run_pass(state, at)


def busy_node(gpus: int = 8, minutes: int = 10, **more) -> ClusterState:
    """A node on which as many tasks run as it has GPUs, for at most so long."""
    state = cluster(node("n1", gpus=gpus), settings=more.pop("settings", RULES), **more)
    do(state, task(1, count=gpus, timeout_ms=minutes * MINUTE), START)
    run_pass(state, START)
    return state


def test_an_8_gpu_task_in_a_stream_of_1_gpu_tasks_starts_by_its_predicted_time() -> None:
    state = busy_node(minutes=10)
    do(state, task(8, timeout_ms=MINUTE), START)
    run_pass(state, START)
    promised_at = START + 10 * MINUTE + OVER_MS
    assert state.reservations[9].at == promised_at
    (predicted, *_) = forecast(state, START).predictions
    assert (predicted.task_id, predicted.p90_at) == (9, promised_at)
    # Every minute one of the small tasks ends, and two new ones of ten minutes come.
    at = START
    for number in range(1, 9):
        at += MINUTE
        do(state, task(1, count=2, timeout_ms=10 * MINUTE), at)
        placed = end(state, number, at)
        assert placed == ([9] if number == 8 else [])
    assert at <= promised_at
    assert state.tasks[9].gpu_ids == tuple(f"GPU-n1-{index}" for index in range(8))


def test_without_reservations_it_would_starve() -> None:
    state = busy_node(settings=Settings(memory_margin_mb=0))
    do(state, task(8, timeout_ms=MINUTE), START)
    at, oldest = START, 1
    for _ in range(30):
        at += MINUTE
        do(state, task(1, timeout_ms=10 * MINUTE), at)
        assert end(state, oldest, at)
        oldest = min(lease.task_id for lease in state.leases.values())
    assert not running(state, 9)


def test_short_tasks_fill_the_gap() -> None:
    state = busy_node(minutes=10)
    do(state, task(8, timeout_ms=MINUTE), START)
    do(
        state, task(1, count=3, timeout_ms=30 * MINUTE), START
    )  # would still run when it is the large one's turn
    do(state, task(1, count=3, timeout_ms=5 * MINUTE), START)  # would not
    assert end(state, 1, START + MINUTE) == [13]
    assert end(state, 2, START + MINUTE) == [14]
    # With four minutes and eleven seconds to go, five minutes are too long.
    assert end(state, 3, START + 6 * MINUTE) == []
    assert state.reservations[9].at == START + 10 * MINUTE + OVER_MS


def test_a_short_task_that_comes_later_need_not_wait_for_anything_to_end() -> None:
    state = busy_node(minutes=10)
    do(state, task(8, timeout_ms=MINUTE), START)
    do(state, task(1, timeout_ms=30 * MINUTE), START)
    assert end(state, 1, START + MINUTE) == []
    do(state, task(1, timeout_ms=MINUTE), START + MINUTE)
    assert run_pass(state, START + MINUTE) == [11]


def test_gpus_that_the_reservation_does_not_need_are_free_for_all() -> None:
    state = cluster(node("n1", gpus=4), node("n2", gpus=2), settings=RULES)
    do(state, task(4, timeout_ms=10 * MINUTE), START)
    do(state, task(4, timeout_ms=MINUTE), START)
    do(state, task(1, count=3, timeout_ms=60 * MINUTE), START)
    assert run_pass(state, START) == [1, 3, 4]
    assert [place.node_id for place in state.reservations[2].places] == ["n1"]


def test_a_gang_is_kept_a_place_on_each_of_its_nodes() -> None:
    state = cluster(node("n1", gpus=2), node("n2", gpus=2), node("n3", gpus=1), settings=RULES)
    do(state, task(2, count=2, timeout_ms=10 * MINUTE), START)
    run_pass(state, START)
    do(state, task(2, nodes=2, timeout_ms=MINUTE), START)
    do(state, task(1, count=4, timeout_ms=60 * MINUTE), START)
    run_pass(state, START)
    assert [place.node_id for place in state.reservations[3].places] == ["n1", "n2"]
    assert end(state, 1, START + MINUTE) == []  # long tasks may not have the node that is free first
    assert end(state, 2, START + 2 * MINUTE) == [3]


# who holds none


def test_a_task_that_its_tenants_limit_keeps_waiting_blocks_nobody() -> None:
    rules = Settings(
        memory_margin_mb=0, reservations=8, tenants=(Tenant(id="lab", max_gpus=4), Tenant(id="other"))
    )
    state = cluster(node("n1", gpus=4), settings=rules)
    do(state, task(1, tenant="lab", timeout_ms=10 * MINUTE), START)
    do(state, task(4, tenant="lab", timeout_ms=10 * MINUTE), START)
    do(state, task(1, count=3, tenant="other", timeout_ms=60 * MINUTE), START)
    assert run_pass(state, START) == [1, 3, 4, 5]
    assert not state.reservations


def test_a_task_that_is_held_gives_its_reservation_back() -> None:
    state = busy_node(gpus=2, minutes=10)
    do(state, task(2, timeout_ms=MINUTE), START)
    do(state, task(1, timeout_ms=60 * MINUTE), START)
    assert end(state, 1, START + MINUTE) == []
    do(state, HoldTasks(task_ids=(3,)), START + MINUTE)
    assert 3 not in state.reservations
    assert run_pass(state, START + MINUTE) == [4]


def test_no_more_tasks_than_configured_hold_one() -> None:
    state = busy_node(gpus=2, settings=Settings(memory_margin_mb=0, reservations=2))
    do(state, task(2, count=5, timeout_ms=MINUTE), START)
    run_pass(state, START)
    assert list(state.reservations) == [3, 4]
    # One after the other: the second waits until the first is over, too.
    first, second = state.reservations.values()
    assert second.at == first.at + MINUTE_CLASS


def test_a_task_that_no_node_can_hold_for_now_takes_nobodys_place() -> None:
    state = cluster(
        node("n1", gpus=2), node("n2", gpus=1), settings=Settings(memory_margin_mb=0, reservations=1)
    )
    do(state, task(1, count=3, timeout_ms=10 * MINUTE), START)
    run_pass(state, START)
    do(state, task(1, nodes=2, priority=90, timeout_ms=MINUTE), START)
    do(state, LoseNode(node_id="n2", reason="silent"), START)
    do(state, task(2, timeout_ms=MINUTE), START)
    run_pass(state, START)
    assert list(state.reservations) == [5]


# order


def test_a_higher_priority_goes_before_a_reservation() -> None:
    state = busy_node(gpus=4, minutes=10)
    do(state, task(4, timeout_ms=MINUTE), START)
    run_pass(state, START)
    promised_at = state.reservations[5].at
    assert end(state, 1, START + MINUTE) == []
    do(state, task(1, timeout_ms=60 * MINUTE), START + MINUTE)
    do(state, task(1, timeout_ms=60 * MINUTE, priority=90), START + MINUTE)
    assert run_pass(state, START + MINUTE) == [7]
    # It has to wait for the urgent one now, and says so.
    assert state.reservations[5].at == START + 61 * MINUTE + OVER_MS > promised_at


def test_an_urgent_large_task_gets_the_earlier_reservation() -> None:
    state = busy_node(gpus=4, minutes=10)
    do(state, task(4, timeout_ms=MINUTE), START)
    run_pass(state, START)
    promised_at = state.reservations[5].at
    do(state, task(4, timeout_ms=MINUTE, priority=90), START)
    run_pass(state, START)
    assert state.reservations[6].at == promised_at
    assert state.reservations[5].at == promised_at + MINUTE_CLASS


def test_one_of_the_same_priority_does_not() -> None:
    """Ageing counts as priority: who has waited longer stands higher."""
    state = busy_node(gpus=4, settings=Settings(memory_margin_mb=0, reservations=8, ageing_ms=MINUTE))
    do(state, task(4, timeout_ms=MINUTE), START)
    run_pass(state, START)
    before = state.reservations[5]
    do(state, task(4, timeout_ms=MINUTE, priority=51), START + 5 * MINUTE)
    run_pass(state, START + 5 * MINUTE)
    assert state.reservations[5] == before
    assert state.reservations[6].at > before.at


# what nobody knows


def test_where_nobody_knows_when_gpus_come_free_only_tasks_of_an_hour_or_less_run_ahead() -> None:
    endless = {"pool": Pool.ONLINE}  # no time limit
    state = cluster(node("n1", gpus=2), settings=ONE_POOL)
    do(state, task(1, count=2, **endless), START)
    run_pass(state, START)
    do(state, task(2, timeout_ms=MINUTE, pool=Pool.ONLINE), START)
    do(state, task(1, **endless), START)
    do(state, task(1, timeout_ms=90 * MINUTE, pool=Pool.ONLINE), START)
    do(state, task(1, timeout_ms=60 * MINUTE, pool=Pool.ONLINE), START)
    run_pass(state, START)
    assert state.reservations[3].at == 0
    told = why(state, 3).reservation
    assert (told.at, told.node_ids, told.waits_for) == (None, ("n1",), (1, 2))
    assert end(state, 1, START + MINUTE) == [6]
    # The rest ends: what is left is known, and from now on nobody runs ahead who is not over by then.
    do(state, task(1, timeout_ms=60 * MINUTE, pool=Pool.ONLINE), START + 2 * MINUTE)
    assert end(state, 2, START + 2 * MINUTE) == []
    assert state.reservations[3].at == START + 61 * MINUTE + OVER_MS
    assert end(state, 6, START + 30 * MINUTE) == [3]


def test_what_runs_have_taught_counts_where_there_is_no_time_limit() -> None:
    state = cluster(node("n1", gpus=2), settings=RULES)
    do(state, task(1, count=2, pool=Pool.ONLINE, command="serve --seed 1"), START)
    known = state.tasks[1]
    kind = kind_of(state.shapes[known.shape_id], known.detail)
    state.run_times[kind] = RunTimes(recent_ms=(4 * MINUTE,) * 5)
    run_pass(state, START)
    do(state, task(2, timeout_ms=MINUTE), START)
    run_pass(state, START)
    assert state.reservations[3].at == START + 4 * MINUTE + 1_000


def test_what_never_ends_is_not_waited_for() -> None:
    """A service holds one of two GPUs: to keep the other idle would help nobody."""
    state = cluster(node("n1", gpus=2), settings=RULES)
    do(state, task(1, pool=Pool.ONLINE, restart=Restart.ALWAYS), START)
    run_pass(state, START)
    do(state, task(2, timeout_ms=MINUTE), START)
    do(state, task(1, timeout_ms=600 * MINUTE), START)
    assert run_pass(state, START) == [3]
    assert not state.reservations


def test_what_outlives_its_time_limit_makes_nobody_run_ahead() -> None:
    state = busy_node(gpus=2, minutes=10)
    do(state, task(2, timeout_ms=MINUTE), START)
    do(state, task(1, timeout_ms=1_000), START)
    assert end(state, 1, START + 11 * MINUTE) == []
    assert end(state, 2, START + 12 * MINUTE) == [3]


# what is told, and kept


def test_why_tells_of_the_reservation_and_of_whom_it_keeps_waiting() -> None:
    state = busy_node(gpus=2, minutes=10)
    do(state, task(2, timeout_ms=MINUTE), START)
    do(state, task(1, timeout_ms=60 * MINUTE), START)
    end(state, 1, START + MINUTE)
    at = START + MINUTE
    large, small = why(state, 3, at), why(state, 4, at)
    assert (large.reservation.at, large.reservation.waits_for) == (START + 10 * MINUTE + OVER_MS, (2,))
    assert large.summary.endswith("it has a reservation on node n1 and starts within 551 s")
    (blocker,) = [each for each in small.blockers if each.code != "tasks_ahead"]
    assert blocker.code == "reserved_for"
    assert blocker.numbers == {
        "task": "task-3",
        "node": "n1",
        "at": START + 10 * MINUTE + OVER_MS,
        "left_ms": 9 * MINUTE + OVER_MS,
        "reservations": 1,
    }
    assert small.reservation.at == START + 10 * MINUTE + OVER_MS + MINUTE_CLASS


def test_a_restart_keeps_what_was_said() -> None:
    state, journal = ClusterState(), []

    def then(command, at: int) -> tuple[Event, ...]:
        events = do(state, command, at)
        journal.extend(events)
        return events

    then(BeginEpoch(settings=RULES), START)
    then(node("n1", gpus=2), START)
    then(task(1, count=2, timeout_ms=10 * MINUTE), START)
    then(RunPass(), START)
    for lease_id in (1, 2):
        then(ReportStarted(lease_id=lease_id), START)
    then(task(2, timeout_ms=MINUTE), START)
    then(task(1, timeout_ms=60 * MINUTE), START)
    then(RunPass(), START)
    again = replay(journal)
    assert digest(again) == digest(state)
    do(again, BeginEpoch(settings=RULES), START + MINUTE)
    do(again, finished(1), START + MINUTE)
    assert run_pass(again, START + MINUTE) == []
    assert again.reservations[3] == state.reservations[3]
    for command in returning(again):
        do(again, command, START + MINUTE)
    assert run_pass(again, START + MINUTE) == []
    assert again.reservations[3].places == state.reservations[3].places
    do(again, CancelTasks(task_ids=(3,)), START + MINUTE)
    assert run_pass(again, START + MINUTE) == [4]


def test_when_reservations_are_turned_off_those_held_are_gone() -> None:
    state = busy_node(gpus=2, minutes=10)
    do(state, task(2, timeout_ms=MINUTE), START)
    do(state, task(1, timeout_ms=60 * MINUTE), START)
    assert end(state, 1, START + MINUTE) == []
    restart(state, Settings(memory_margin_mb=0), START + MINUTE)
    run_pass(state, START + MINUTE)
    assert not state.reservations
    assert running(state, 4)
    do(state, task(2, priority=90), START + MINUTE)
    run_pass(state, START + MINUTE)
    assert not pass_due(state)


def test_a_gang_that_lacks_nodes_is_not_told_that_reservations_keep_it_waiting() -> None:
    rules = Settings(memory_margin_mb=0, reservations=1)
    state = cluster(node("n1", gpus=2, cpus=8), node("n2", gpus=1), settings=rules)
    do(state, task(0, cpus=8, timeout_ms=10 * MINUTE, constraints=(("node", True, ("n1",)),)), START)
    do(state, task(1, timeout_ms=10 * MINUTE, constraints=(("node", True, ("n2",)),)), START)
    do(state, task(1, cpus=4, timeout_ms=MINUTE, constraints=(("node", True, ("n1",)),)), START)
    do(state, task(1, nodes=2, timeout_ms=60 * MINUTE), START)
    run_pass(state, START)
    assert [place.node_id for place in state.reservations[3].places] == ["n1"]
    # n1 has a card beside what is kept, and would have one without: it is one node all the same.
    assert "reserved_for" not in {each.code for each in why(state, 4, START).blockers}


def test_those_refused_earlier_may_run_ahead_in_a_room_that_has_more_only_for_a_reservation() -> None:
    state = busy_node(gpus=2, minutes=10)
    do(state, task(2, timeout_ms=MINUTE), START)
    do(state, task(1, memory_mb=8_192, timeout_ms=60 * MINUTE), START)  # too long
    do(state, task(1, timeout_ms=MINUTE), START)  # over in time
    assert run_pass(state, START) == []
    assert end(state, 1, START + MINUTE) == [5]
    assert end(state, 5, START + 2 * MINUTE) == []
    assert end(state, 2, START + 3 * MINUTE) == [3]


def test_reservations_that_are_turned_off_in_the_middle_leave_nobody_unasked() -> None:
    state = busy_node(gpus=4, minutes=10)
    do(state, task(4, timeout_ms=MINUTE), START)
    do(state, task(1, count=2, timeout_ms=MINUTE), START)
    run_pass(state, START)
    for task_id in (1, 2):
        end_task(state, state.tasks[task_id], START + MINUTE)
    assert run_pass(state, START + MINUTE, limit=1) == [6]
    restart(state, Settings(memory_margin_mb=0), START + MINUTE)
    assert run_pass(state.fork(), START + MINUTE) == run_pass(state, START + MINUTE) == [7]


def test_a_reservation_whose_time_passed_while_its_node_was_away_is_used_when_the_node_is_back() -> None:
    """After a restart it did not move, and it looked refused to the very task that holds it: nothing ran any more."""
    state = busy_node(gpus=2, minutes=10)
    do(state, task(1, count=2, timeout_ms=60 * MINUTE), START)
    assert run_pass(state, START) == []
    assert len(state.reservations) == 2
    late = START + 60 * MINUTE
    do(state, BeginEpoch(settings=RULES), late)
    for task_id in (1, 2):
        do(state, finished(task_id), late)
    assert run_pass(state, late) == [], "its node has not contacted the scheduler yet"
    for command in returning(state):
        do(state, command, late + 1)
    assert run_pass(state, late + 1) == [3, 4]
