"""Nodes that have not contacted this scheduler since it started: they keep their tasks and get no new ones."""

from __future__ import annotations

from building import cluster, do, finished, node, restart, returning, run_pass, task
from dgpu.core.apply.table import apply
from dgpu.core.commands import BeginEpoch, LoseNode, ReportStarted, RunPass, SetQuota
from dgpu.core.digest import digest
from dgpu.core.events import EpochBegan, TaskStopRequested
from dgpu.core.execute import execute
from dgpu.core.foresight.explain import explain
from dgpu.core.foresight.forecast import forecast
from dgpu.core.index.limits import quota_of
from dgpu.core.invariants import check_invariants
from dgpu.core.model.node import GpuStatus, NodeStatus
from dgpu.core.model.quota import QuotaMode, Reclaim
from dgpu.core.model.settings import Settings
from dgpu.core.model.task import Pool, TaskStatus
from dgpu.core.rules.admission import used_milli

MINUTE = 60_000


def test_a_node_gets_no_tasks_until_it_registers_with_the_new_scheduler() -> None:
    state = cluster(node("n1", gpus=2), task(1))
    assert run_pass(state) == [1]
    do(state, BeginEpoch(settings=state.settings))
    do(state, task(1))
    assert run_pass(state) == []
    assert state.nodes["n1"].status is NodeStatus.UNCONFIRMED
    assert state.tasks[1].status is TaskStatus.RUNNING
    check_invariants(state)
    for command in returning(state):
        do(state, command)
    assert state.nodes["n1"].status is NodeStatus.READY
    assert run_pass(state) == [2]
    assert state.tasks[1].attempt == 1


def test_the_gpus_of_an_unconfirmed_node_still_count_for_the_quota() -> None:
    state = cluster(node("n1", gpus=4), task(1))
    run_pass(state)
    before = (quota_of(state), used_milli(state, Pool.BATCH))
    do(state, BeginEpoch(settings=state.settings))
    run_pass(state)
    counts = state.gpu_counts()
    assert (counts[GpuStatus.UNCONFIRMED], counts[GpuStatus.BUSY], counts[GpuStatus.IDLE]) == (3, 1, 0)
    assert (quota_of(state), used_milli(state, Pool.BATCH)) == before


def test_a_lost_node_is_offline_and_no_longer_unconfirmed() -> None:
    state = cluster(node("n1", gpus=1))
    do(state, BeginEpoch(settings=state.settings))
    do(state, LoseNode(node_id="n1", reason="no heartbeat for 60 s"))
    assert state.nodes["n1"].status is NodeStatus.OFFLINE
    assert not state.nodes["n1"].unconfirmed_since


def test_an_offline_node_stays_offline_over_a_restart() -> None:
    state = cluster(node("n1", gpus=1))
    do(state, LoseNode(node_id="n1", reason="no heartbeat for 15 s"))
    do(state, BeginEpoch(settings=state.settings))
    assert state.nodes["n1"].status is NodeStatus.OFFLINE


def test_why_names_the_nodes_that_are_unconfirmed() -> None:
    state = cluster(node("n1", gpus=2), node("n2", gpus=2), task(1))
    run_pass(state)
    do(state, BeginEpoch(settings=state.settings))
    do(state, task(2))
    run_pass(state)
    waits = explain(state, 2, state.last_at)
    (blocker,) = [each for each in waits.blockers if each.code == "unconfirmed"]
    assert blocker.numbers == {"nodes": 2, "gpus": 4}
    assert "have not contacted this scheduler since it started" in blocker.detail
    runs = explain(state, 1, state.last_at)
    assert [each.code for each in runs.blockers] == ["node_unconfirmed"]


def test_a_forecast_assumes_that_unconfirmed_nodes_come_back() -> None:
    state = cluster(node("n1", gpus=1))
    do(state, BeginEpoch(settings=state.settings))
    do(state, task(1))
    run_pass(state)
    before = digest(state)
    expected = forecast(state, state.last_at)
    assert [each.p50_at for each in expected.predictions] == [state.last_at]
    assert digest(state) == before


def test_nothing_is_stopped_for_quota_while_idle_gpus_may_come_back() -> None:
    rules = Settings(memory_margin_mb=0)
    state = cluster(node("n1", gpus=1), node("n2", gpus=1), settings=rules)
    do(state, SetQuota(online_ppm=500_000, mode=QuotaMode.BORROW, reclaim=Reclaim.STOP))
    do(state, task(1, count=2))
    assert run_pass(state) == [1, 2]
    for lease_id in (1, 2):
        do(state, ReportStarted(lease_id=lease_id))
    do(state, finished(2))
    do(state, BeginEpoch(settings=rules))
    (first, second) = returning(state)
    do(state, first if state.tasks[1].node_id == first.node_id else second)
    do(state, task(1, pool=Pool.ONLINE))
    stops = execute(state, RunPass(at=state.last_at + 1))
    assert not [event for event in stops if isinstance(event, TaskStopRequested)]
    do(state, second if state.tasks[1].node_id == first.node_id else first)
    assert run_pass(state) == [3]


def test_a_journal_older_than_this_rule_replays_as_it_was_decided() -> None:
    """An older scheduler placed tasks on nodes that had not registered with it yet."""
    state = cluster(node("n1", gpus=1))
    (began,) = do(state.fork(), BeginEpoch(settings=state.settings))
    assert isinstance(began, EpochBegan)
    assert began.unconfirms
    old = EpochBegan(at=began.at, epoch=began.epoch, settings=began.settings)
    apply(state, old)
    assert state.nodes["n1"].status is NodeStatus.READY


def test_a_restart_with_all_nodes_back_leaves_no_trace() -> None:
    state = cluster(node("n1", gpus=2), task(1))
    run_pass(state)
    counts = state.gpu_counts()
    restart(state)
    assert state.gpu_counts() == counts
    assert not state.nodes["n1"].unconfirmed_since
    check_invariants(state)
