"""Tasks over several nodes: placed at once or not at all, ended together."""

from __future__ import annotations

import pytest

from building import cluster, do, finished, node, run_pass, task, tried
from building.lockstep import remade
from dgpu.core.commands import CancelTasks, LoseNode, ReleaseNode, ReportStarted, RunPass, Tick
from dgpu.core.events import GangPlaced, RankEnded, TaskFinished, TaskRequeued
from dgpu.core.foresight.explain import explain
from dgpu.core.invariants import check_invariants
from dgpu.core.model.task import Outcome, Restart
from dgpu.core.rejections import NeverFits, StaleLease
from dgpu.core.rules.place import beside_reservations
from dgpu.core.state import ClusterState


def three_nodes(gpus: int = 2) -> ClusterState:
    return cluster(*(node(name, gpus=gpus) for name in ("n1", "n2", "n3")))


def gang(*, nodes: int = 3, gpus: int = 1, **more) -> ClusterState:
    """A gang that runs."""
    state = three_nodes()
    do(state, task(gpus, nodes=nodes, **more))
    assert run_pass(state) == [1]
    for lease_id in state.gangs[1].leases if 1 in state.gangs else ():
        do(state, ReportStarted(lease_id=lease_id))
    check_invariants(state)
    return state


def stopped(lease_id: int):
    return finished(lease_id, outcome=Outcome.STOPPED)


def test_each_rank_has_a_node_of_its_own() -> None:
    state = gang(gpus=2)
    assert state.tasks[1].node_ids == ("n1", "n2", "n3")
    assert len(state.tasks[1].gpu_ids) == 6
    assert [state.leases[each].rank for each in state.gangs[1].leases] == [0, 1, 2]
    assert state.running_count == 1


def test_all_ranks_are_placed_or_none() -> None:
    state = three_nodes(gpus=1)
    do(state, task())
    assert run_pass(state) == [1]
    do(state, task(nodes=3))
    do(state, task())
    assert run_pass(state) == [3]  # who fits passes by
    told = explain(state, 2, state.last_at)
    assert told.blockers[0].code == "nodes"
    assert told.blockers[0].numbers == {"needed": 3, "free": 1, "gpus_on_each": 1}
    do(state, finished(state.tasks[1].lease_id))
    assert run_pass(state) == []
    do(state, finished(state.tasks[3].lease_id))
    assert run_pass(state) == [2]


def test_more_nodes_than_there_are_is_refused() -> None:
    state = three_nodes()
    assert tried(state, task(nodes=4)) == NeverFits(entry=0, lacks="nodes", requested=4, largest=3)
    assert tried(state, task(3, nodes=2)) == NeverFits(entry=0, lacks="gpus", requested=3, largest=2)


def test_it_succeeds_when_the_last_rank_has() -> None:
    state = gang()
    one, two, three = state.gangs[1].leases
    assert [type(each) for each in do(state, finished(two))] == [RankEnded]
    do(state, finished(three))
    assert state.tasks[1].status.value == "running"
    check_invariants(state)
    do(state, finished(one))
    assert state.tasks[1].status.value == "success"
    assert not state.leases
    check_invariants(state)


def test_a_report_on_a_rank_that_is_over_is_stale() -> None:
    state = gang()
    do(state, finished(state.gangs[1].leases[1]))
    lease_id = state.gangs[1].leases[1]
    assert tried(state, finished(lease_id)) == StaleLease(lease_id=lease_id)
    assert tried(state, ReportStarted(lease_id=lease_id)) == StaleLease(lease_id=lease_id)


def test_one_rank_fails_and_all_stop() -> None:
    state = gang()
    one, two, three = state.gangs[1].leases
    do(state, finished(two, 3))
    assert [state.leases[each].stopping for each in (one, three)] == ["rank_ended", "rank_ended"]
    check_invariants(state)
    do(state, stopped(one))
    (_, ended) = do(state, stopped(three))
    assert isinstance(ended, TaskFinished)
    assert (ended.status.value, ended.exit_code, ended.reason) == ("failed", 3, "exit_code")
    assert ended.error == "rank 1: exited with code 3"


def test_the_first_failure_counts_not_what_follows_from_it() -> None:
    state = gang()
    one, two, three = state.gangs[1].leases
    do(state, finished(three, outcome=Outcome.NODE_FAULT, error="disk full"))
    do(state, finished(one, 1))
    (_, ended) = do(state, finished(two, 1))
    assert isinstance(ended, TaskRequeued)
    assert ended.counted
    assert ended.error == "rank 2: the node failed: disk full"


def test_the_whole_is_tried_again() -> None:
    state = gang(restart=Restart.ON_FAILURE)
    one, two, three = state.gangs[1].leases
    do(state, finished(one, 1))
    do(state, stopped(two))
    do(state, stopped(three))
    assert state.tasks[1].status.value == "pending"
    assert not state.gangs
    assert run_pass(state, at=state.tasks[1].eligible_at) == [1]
    assert state.tasks[1].attempt == 2
    assert len(state.gangs[1].leases) == 3
    check_invariants(state)


def test_cancelling_stops_all_ranks() -> None:
    state = gang()
    do(state, CancelTasks(task_ids=(1,)))
    *others, last = state.gangs[1].leases
    for lease_id in others:
        do(state, stopped(lease_id))
    assert state.tasks[1].cancelling
    do(state, stopped(last))
    assert state.tasks[1].status.value == "cancelled"
    check_invariants(state)


def test_cancelling_by_filters_names_a_gang_once() -> None:
    state = gang()
    assert len(do(state, CancelTasks())) == 1


def test_a_node_that_is_silent_stops_nobody() -> None:
    """It may be back in a moment, as with any other task."""
    state = gang()
    do(state, LoseNode(node_id="n2", reason="silent"))
    assert state.gangs[1].failed is None
    told = explain(state, 1, state.last_at)
    assert [each.code for each in told.blockers] == ["node_unreachable"]


def test_a_rank_that_is_gone_with_its_node_stops_the_others_and_nothing_is_counted() -> None:
    state = gang()
    one, _, three = state.gangs[1].leases
    do(state, LoseNode(node_id="n2", reason="silent"))
    do(state, ReleaseNode(node_id="n2", reason="lease over"))
    check_invariants(state)
    assert state.tasks[1].status.value == "running"
    assert run_pass(state) == []
    do(state, stopped(one))
    (_, again) = do(state, stopped(three))
    assert isinstance(again, TaskRequeued)
    assert (again.counted, again.reason) == (False, "node_lost")
    check_invariants(state)


def test_a_rank_that_never_reports_is_waited_for_until_it_is_certain() -> None:
    state = gang()
    one, two, three = state.gangs[1].leases
    do(state, finished(one, 1))
    do(state, stopped(three))
    do(state, LoseNode(node_id="n2", reason="silent"))
    assert state.tasks[1].status.value == "running"
    do(state, ReleaseNode(node_id="n2", reason="lease over"))
    assert state.tasks[1].status.value == "failed"
    assert two not in state.leases


def test_a_node_that_restarted_has_lost_its_rank() -> None:
    state = gang()
    do(state, node("n3", gpus=2, boot="boot-2"))
    assert state.gangs[1].failed is not None
    do(state, node("n3", gpus=2, boot="boot-3"))  # the rank is over already: nothing new
    check_invariants(state)


def test_the_last_rank_ends_the_whole_also_when_its_node_restarted() -> None:
    state = gang()
    _, two, three = state.gangs[1].leases
    do(state, finished(two))
    do(state, finished(three))
    do(state, node("n1", gpus=2, boot="boot-2"))
    assert (state.tasks[1].status.value, state.tasks[1].reason) == ("pending", "node_lost")
    check_invariants(state)


def test_an_allocation_over_nodes_needs_no_agent() -> None:
    state = gang(allocation=True, timeout_ms=1_000)
    assert state.tasks[1].started_at
    do(state, Tick(), at=state.tasks[1].started_at + 1_000)
    assert state.tasks[1].status.value == "success"
    assert not state.leases


def test_its_placement_is_one_event() -> None:
    state = three_nodes()
    do(state, task(nodes=2))
    events = do(state, RunPass())
    assert [type(each) for each in events] == [GangPlaced]


@pytest.mark.parametrize("nodes", [2, 3])
def test_a_gang_among_others_keeps_every_count(nodes) -> None:
    state = three_nodes()
    do(state, task(nodes=nodes, count=2))
    do(state, task(count=3))
    run_pass(state)
    check_invariants(state)
    assert state.running_count + state.waiting_count + state.ended_count == len(state.tasks)


def test_a_state_made_from_a_snapshot_counts_a_gang_once() -> None:
    state = gang(nodes=3)
    assert remade(state).running_count == state.running_count == 1


def test_a_rank_ended_when_its_agent_says_not_when_the_report_arrived() -> None:
    state = gang(nodes=2)
    report = finished(state.gangs[1].leases[1], ago_ms=400, at=state.last_at + 1_000)
    (ended,) = [each for each in do(state, report) if isinstance(each, RankEnded)]
    assert ended.finished_at == ended.at - 400


def test_a_gang_of_two_does_not_fit_on_one_free_node() -> None:
    state = cluster(node("n1"), node("n2"), task(), task(nodes=2))
    demand = state.queue.shapes[state.tasks[2].shape_id].demand
    assert beside_reservations(state, demand)
    run_pass(state)
    assert not beside_reservations(state, demand)
