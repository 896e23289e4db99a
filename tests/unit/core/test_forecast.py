"""When will it start: from time limits and from how long runs of its kind took."""

from __future__ import annotations

from building import START, cluster, do, finished, node, run_pass, task
from dgpu.core.commands import HoldTasks, LoseNode, ReportStarted
from dgpu.core.digest import digest
from dgpu.core.foresight.forecast import forecast
from dgpu.core.model.quota import Quota, QuotaMode, Reclaim
from dgpu.core.model.run_times import MAX_KINDS, MAX_RUNS, RunTimes, kind_of, note_run, quantile_ms
from dgpu.core.model.settings import Settings
from dgpu.core.model.task import Pool, Restart, Task, TaskStatus
from dgpu.core.rules.durations import KILL_GRACE_MS, RELEASE_MS, STOP_MS
from dgpu.core.state import ClusterState

MINUTE = 60_000
NO_LIMITS = Settings(default_timeout_ms=0, max_timeout_ms=0)


def foretold(state: ClusterState) -> dict[int, tuple[int, int]]:
    before = digest(state)
    found = forecast(state, state.last_at)
    assert digest(state) == before
    return {each.task_id: (each.p50_at, each.p90_at) for each in found.predictions}


def ran(state: ClusterState, *lengths_ms: int, **more) -> None:
    """Runs of one kind, one after the other."""
    for length_ms in lengths_ms:
        do(state, task(**more))
        run_pass(state)
        lease_id = state.next_lease_id - 1
        do(state, ReportStarted(lease_id=lease_id))
        started_at = state.last_at
        do(state, finished(lease_id), at=started_at + length_ms)


def test_the_next_task_starts_when_the_time_limit_of_the_first_is_over_and_its_gpu_is_free() -> None:
    state = cluster(node("n1"), task(timeout_ms=MINUTE, count=3))
    run_pass(state)
    do(state, ReportStarted(lease_id=1))
    first_at = state.last_at + MINUTE + KILL_GRACE_MS + RELEASE_MS
    second_at = first_at + MINUTE + KILL_GRACE_MS + RELEASE_MS
    assert foretold(state) == {2: (first_at, first_at), 3: (second_at, second_at)}


def test_where_neither_a_limit_nor_a_learned_time_is_known_the_start_is_unknown() -> None:
    state = cluster(node("n1"), task(count=2), settings=NO_LIMITS)
    run_pass(state)
    assert foretold(state) == {}


def test_learned_run_times_give_a_median_and_a_90th_percentile() -> None:
    state = cluster(node("n1"), settings=NO_LIMITS)
    ran(state, *(number * MINUTE for number in range(1, 11)), command="train")
    do(state, task(count=2, command="train"))
    run_pass(state)
    do(state, ReportStarted(lease_id=11))
    began_at = state.last_at
    assert foretold(state) == {12: (began_at + 6 * MINUTE + RELEASE_MS, began_at + 10 * MINUTE + RELEASE_MS)}


def test_a_run_that_has_taken_long_already_is_compared_with_longer_ones() -> None:
    state = cluster(node("n1"), settings=NO_LIMITS)
    ran(state, MINUTE, MINUTE, MINUTE, 9 * MINUTE, command="train")
    do(state, task(command="train"))
    run_pass(state)
    do(state, ReportStarted(lease_id=5))
    began_at = state.last_at
    do(state, task(command="eval"), at=began_at + 2 * MINUTE)
    assert foretold(state)[6][0] == began_at + 9 * MINUTE + RELEASE_MS
    do(state, task(command="eval"), at=began_at + 10 * MINUTE)
    assert foretold(state) == {}  # none took that long: nobody knows


def test_a_learned_time_counts_before_a_far_limit_and_never_beyond_it() -> None:
    state = cluster(node("n1"))
    ran(state, MINUTE, command="train")
    do(state, task(command="train", timeout_ms=60 * MINUTE))
    do(state, task(command="train", timeout_ms=30_000))
    do(state, task(command="other"))
    run_pass(state)
    do(state, ReportStarted(lease_id=2))
    second_at = state.last_at + MINUTE + RELEASE_MS
    third_at = second_at + 30_000 + KILL_GRACE_MS + RELEASE_MS
    assert {task_id: p50 for task_id, (p50, _) in foretold(state).items()} == {3: second_at, 4: third_at}


def test_services_and_tasks_on_nodes_out_of_reach_end_at_no_known_time() -> None:
    state = cluster(node("n1"), task(timeout_ms=MINUTE, restart=Restart.ALWAYS), task(timeout_ms=MINUTE))
    run_pass(state)
    assert foretold(state) == {}
    state = cluster(node("n1"), task(timeout_ms=MINUTE), task(timeout_ms=MINUTE))
    run_pass(state)
    do(state, LoseNode(node_id="n1", reason="silent"))
    assert foretold(state) == {}


def test_a_held_task_has_no_expected_start() -> None:
    state = cluster(node("n1"), task(timeout_ms=MINUTE, count=3))
    run_pass(state)
    do(state, HoldTasks(task_ids=(2,)))
    assert list(foretold(state)) == [3]


def test_a_gang_starts_when_the_last_of_its_nodes_is_free() -> None:
    state = cluster(
        node("n1"), node("n2"), task(timeout_ms=MINUTE), task(timeout_ms=5 * MINUTE), task(nodes=2)
    )
    run_pass(state)
    ends_at = state.last_at + 5 * MINUTE + KILL_GRACE_MS + RELEASE_MS
    assert foretold(state)[3][0] == ends_at


def test_an_allocation_ends_with_its_time() -> None:
    state = cluster(node("n1"), task(timeout_ms=MINUTE, allocation=True), task())
    run_pass(state)
    assert foretold(state)[2][0] == state.last_at + MINUTE


def test_only_the_first_in_the_queue_are_foretold() -> None:
    state = cluster(node("n1"), task(timeout_ms=MINUTE, count=20))
    run_pass(state)
    found = forecast(state, state.last_at, most=5)
    assert ([each.task_id for each in found.predictions], found.looked_at) == ([2, 3, 4, 5, 6], 5)


# what is learned


def test_commands_that_differ_in_numbers_only_are_of_one_kind_other_tenants_and_sizes_are_not() -> None:
    state = cluster(node("n1", gpus=4))
    ran(state, 5_000, 6_000, command="train --seed 1")
    ran(state, 7_000, command="train --seed 27")
    ran(state, 1_000, command="train --seed 1", gpus=2)
    ran(state, 2_000, command="train --seed 1", tenant="other")
    assert sorted(runs.recent_ms for runs in state.run_times.values()) == [
        (1_000,),
        (2_000,),
        (5_000, 6_000, 7_000),
    ]


def test_cancelled_tasks_and_allocations_teach_nothing() -> None:
    known: dict[str, RunTimes] = {}
    state = cluster(task())
    for more in ({"status": TaskStatus.CANCELLED}, {"allocation": True}, {"started_at": 0}):
        values = {"status": TaskStatus.SUCCESS, "started_at": 5, "finished_at": 9, **more}
        ended = Task(id=1, shape_id=1, detail=b"{}", created_at=1, **values)
        note_run(known, state.shapes[1], ended, 9)
    assert known == {}


def test_what_is_learned_is_bounded() -> None:
    state = cluster(node("n1"), task())
    known = {str(number): RunTimes(recent_ms=(1,), updated_at=number) for number in range(MAX_KINDS)}
    ended = Task(
        id=1, shape_id=1, detail=b"{}", created_at=1, status=TaskStatus.SUCCESS, started_at=1, finished_at=4
    )
    for _ in range(2 * MAX_RUNS):
        note_run(known, state.shapes[1], ended, START)
    assert len(known) == MAX_KINDS // 2 + 1
    assert known[kind_of(state.shapes[1], b"{}")].recent_ms == (3,) * MAX_RUNS
    assert "0" not in known
    assert str(MAX_KINDS - 1) in known


def test_quantiles_are_of_runs_that_took_longer() -> None:
    runs = RunTimes(recent_ms=(30, 10, 20, 40))
    assert quantile_ms(runs, 50, longer_than_ms=0) == 30
    assert quantile_ms(runs, 90, longer_than_ms=0) == 40
    assert quantile_ms(runs, 50, longer_than_ms=30) == 40
    assert quantile_ms(runs, 50, longer_than_ms=40) is None
    assert quantile_ms(None, 50, longer_than_ms=0) is None


def test_a_task_that_is_being_stopped_ends_soon_whatever_its_time_limit() -> None:
    """An online task that waits for a GPU lent to batch work starts after the stop, not after a day."""
    lent = Settings(quota=Quota(online_ppm=1_000_000, mode=QuotaMode.BORROW, reclaim=Reclaim.STOP))
    state = cluster(node("n1"), task(timeout_ms=24 * 60 * MINUTE), settings=lent)
    run_pass(state)
    do(state, task(pool=Pool.ONLINE))
    run_pass(state)
    assert state.leases[1].stopping
    assert foretold(state)[2][0] == state.last_at + STOP_MS


def test_a_forecast_takes_a_bounded_number_of_steps() -> None:
    """It must answer within a request, however many short tasks run ahead of the asked one before it starts."""
    state = cluster(node("n1", gpus=2), task(timeout_ms=24 * 60 * MINUTE), task(2))
    do(state, task(count=1_500, timeout_ms=1_000))
    run_pass(state)
    assert forecast(state, state.last_at, most=1).predictions == ()
