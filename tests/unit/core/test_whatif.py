"""What would happen if: a diff against the same run without the change."""

from __future__ import annotations

from building import cluster, do, node, run_pass, task
from dgpu.core.commands import Command, DrainNode, ReportStarted, SetQuota
from dgpu.core.digest import digest
from dgpu.core.foresight.whatif import Effect, Starts, lose, whatif
from dgpu.core.model.quota import Quota, QuotaMode, Reclaim
from dgpu.core.model.settings import Settings
from dgpu.core.model.task import Pool
from dgpu.core.rejections import NeverFits, UnknownNode
from dgpu.core.state import ClusterState

MINUTE = 60_000
MARGIN = 11_000  # kill grace and release


def asked(state: ClusterState, *change: Command) -> Effect:
    before = digest(state)
    effect = whatif(state, change, state.last_at + 1)
    assert digest(state) == before
    return effect


def busy() -> ClusterState:
    """A GPU with a minute to go, one with two, and two tasks that wait."""
    state = cluster(
        node("n1"),
        node("n2"),
        task(timeout_ms=MINUTE),
        task(timeout_ms=2 * MINUTE),
        task(timeout_ms=MINUTE, count=2),
    )
    run_pass(state)
    return state


def test_no_change_has_no_effect() -> None:
    assert asked(busy()) == Effect()


def test_a_submit_that_fits_would_start_now() -> None:
    state = cluster(node("n1"))
    assert asked(state, task()).starts == (Starts(task_id=1, node_ids=("n1",), is_new=True),)


def test_a_submit_that_must_wait_says_when_and_why_and_whom_it_delays() -> None:
    state = busy()
    effect = asked(state, task(priority=90, timeout_ms=MINUTE))
    (wait,) = effect.waits
    assert (effect.starts, wait.task_id) == ((), 5)
    assert wait.starts_at == state.last_at + MINUTE + MARGIN
    assert [blocker.code for blocker in wait.explanation.blockers] == ["gpus_busy"]
    # Both GPUs come free at times a minute apart; each of the two in the queue moves on by one.
    (first, second) = effect.delays
    assert (first.task_id, second.task_id) == (3, 4)
    assert (first.before_at, first.after_at) == (wait.starts_at, wait.starts_at + MINUTE)
    assert second.after_at > second.before_at


def test_a_submit_behind_all_others_delays_nobody() -> None:
    assert asked(busy(), task(priority=1)).delays == ()


def test_what_would_be_refused_says_so_and_nothing_else() -> None:
    effect = asked(busy(), task(8))
    assert isinstance(effect.rejected, NeverFits)
    assert effect == Effect(rejected=effect.rejected)
    assert asked(busy(), DrainNode(node_id="n9")).rejected == UnknownNode(node_id="n9")


def test_a_drain_delays_those_who_would_have_gone_there() -> None:
    state = busy()
    effect = asked(state, DrainNode(node_id="n1"))
    assert effect.stops == ()
    assert [delay.task_id for delay in effect.delays] == [3, 4]
    only = cluster(node("n1"), task(timeout_ms=MINUTE, count=2))
    run_pass(only)
    (delay,) = asked(only, DrainNode(node_id="n1")).delays
    assert (delay.task_id, delay.after_at) == (2, None)


def test_a_lost_node_stops_what_runs_there() -> None:
    state = busy()
    effect = asked(state, *lose("n1"))
    assert [(stop.task_id, stop.node_id) for stop in effect.stops] == [(1, "n1")]
    assert [delay.task_id for delay in effect.delays] == [3, 4]


def test_added_nodes_start_those_who_wait_and_nobody_else() -> None:
    assert asked(busy(), node("n3")).starts == (Starts(task_id=3, node_ids=("n3",)),)


def test_another_quota_starts_some_and_delays_others() -> None:
    strict = Settings(quota=Quota(online_ppm=500_000, mode=QuotaMode.STRICT), memory_margin_mb=0)
    state = cluster(node("n1", gpus=4), task(count=4, timeout_ms=MINUTE), settings=strict)
    assert run_pass(state) == [1, 2]
    do(state, ReportStarted(lease_id=1))
    effect = asked(state, SetQuota(online_ppm=250_000))
    assert [start.task_id for start in effect.starts] == [3]
    assert asked(state, SetQuota(online_ppm=750_000)).rejected is not None


def test_borrowed_gpus_that_online_wants_back_are_named_as_stops() -> None:
    lending = Settings(
        quota=Quota(online_ppm=500_000, mode=QuotaMode.BORROW, reclaim=Reclaim.STOP), memory_margin_mb=0
    )
    state = cluster(node("n1", gpus=2), task(count=2, timeout_ms=MINUTE), settings=lending)
    assert run_pass(state) == [1, 2]
    effect = asked(state, task(pool=Pool.ONLINE, priority=90))
    assert [stop.task_id for stop in effect.stops] == [2]
