"""Nodes of other clusters, and of epochs that this journal does not have."""

from __future__ import annotations

import pytest

from dgpu.core.model.ids import first_lease_of
from dgpu.core.model.settings import Settings
from dgpu.core.model.task import TaskStatus
from dgpu.service.machine.inputs import Begin
from dgpu.service.machine.outputs import Contradicted
from dgpu.wire.proto import agent_pb2 as pb
from unit.service.cluster import Bench, register, reports, starts, submit, told

LEASE = first_lease_of(2)


def held(**other) -> pb.HeldLease:
    facts = {"lease_id": LEASE, "task_id": 1, "attempt": 1, "nonce": "n2", "cluster_id": "ours"} | other
    return pb.HeldLease(state=pb.HeldLease.RUNNING, **facts)


def bench(**begin) -> Bench:
    """Epoch 2 of the cluster `ours`."""
    made = Bench()
    made.put(Begin(settings=Settings(), nonce="n2", cluster_id="ours", **begin))
    made.settle()
    return made


def running() -> Bench:
    made = bench()
    made.say(1, register())
    made.ask(submit())
    assert starts(made.settle()) == [LEASE]
    made.say(1, reports(started=(LEASE,)))
    made.leave(1)
    return made


def test_a_welcome_and_an_order_name_cluster_and_nonce() -> None:
    made = bench()
    (welcome,) = told(made.say(1, register()))
    assert (welcome.welcome.cluster_id, welcome.welcome.nonce, welcome.welcome.epoch) == ("ours", "n2", 2)
    made.ask(submit())
    (orders,) = told(made.settle())
    assert [(start.lease_id, start.nonce) for start in orders.orders.starts] == [(LEASE, "n2")]


def test_a_node_of_another_cluster_is_refused_by_name() -> None:
    (refused,) = told(bench().say(1, register(cluster_id="theirs", epoch=2, nonce="n2")))
    assert "node n1 belongs to cluster theirs, this scheduler to ours" in refused.refused.reason
    assert "remove cluster.json" in refused.refused.reason


@pytest.mark.parametrize(("epoch", "nonce", "seen"), [(5, "n5", "epoch 5"), (2, "other", "another epoch 2")])
def test_an_epoch_that_the_journal_does_not_have_is_told_to_the_operator(epoch, nonce, seen) -> None:
    outputs = bench().say(1, register(cluster_id="ours", epoch=epoch, nonce=nonce, held=(held(task_id=70),)))
    (refused,) = told(outputs)
    assert f"node n1 has obeyed {seen}: the scheduler's state was restored" in refused.refused.reason
    (contradicted,) = [each for each in outputs if isinstance(each, Contradicted)]
    assert (contradicted.epoch, contradicted.task_id) == (epoch, 70)


def test_restarts_alone_do_not_bring_back_a_node_of_a_lost_epoch() -> None:
    """A restored scheduler passes the node's number after a few restarts; the nonce still tells them apart."""
    made = bench()
    for number in range(3, 7):
        made.put(Begin(settings=Settings(), nonce=f"n{number}"))
        made.settle()
    (refused,) = told(made.say(1, register(cluster_id="ours", epoch=4, nonce="lost")))
    assert "has obeyed another epoch 4" in refused.refused.reason
    made.put(Begin(settings=Settings(), nonce="n7", above_epoch=9, lost_tail=True))
    made.settle()
    (welcome,) = told(made.say(2, register(cluster_id="ours", epoch=4, nonce="lost")))
    assert welcome.welcome.epoch == 10


def test_our_own_run_is_kept() -> None:
    made = running()
    (welcome,) = told(made.say(2, register(held=(held(),), cluster_id="ours", epoch=2, nonce="n2")))
    assert list(welcome.welcome.keep) == [LEASE]


@pytest.mark.parametrize("other", [{"task_id": 9}, {"attempt": 2}, {"nonce": "old"}, {"cluster_id": "old"}])
def test_a_run_of_another_journal_is_not_kept_and_our_task_is_placed_again(other) -> None:
    """Before, the other task's exit code became this one's."""
    made = running()
    outputs = made.say(2, register(held=(held(**other),)))
    (welcome, *_) = told(outputs)
    assert list(welcome.welcome.keep) == []
    assert made.state.tasks[1].status is TaskStatus.RUNNING
    assert starts(outputs) == [LEASE + 1]


def test_an_order_that_never_arrived_is_ordered_again_although_the_number_is_held_for_another_task() -> None:
    made = bench()
    made.say(1, register())
    made.ask(submit())
    assert starts(made.settle()) == [LEASE]
    made.leave(1)
    assert starts(made.say(2, register(held=(held(task_id=9),)))) == [LEASE]


def test_an_epoch_beyond_the_last_possible_one_is_refused_as_malformed() -> None:
    (hang_up,) = bench().say(1, register(epoch=1 << 40))
    assert hang_up.fault
    assert "above 2097151" in hang_up.reason


def test_after_a_lost_tail_tasks_wait_until_runs_of_lost_leases_are_over() -> None:
    """A node that is still away may run them under a lease that the journal does not know any more."""
    made = bench()
    made.say(1, register())
    made.put(Begin(settings=Settings(), nonce="n3", lost_tail=True))
    made.settle()
    made.say(2, register())
    made.ask(submit())
    assert starts(made.settle()) == []
    assert made.scheduler.wake_at() > made.now, "no busy waiting"
    assert starts(made.wait(60_000, beating={2: 1})) == []
    assert starts(made.wait(10_000, beating={2: 1})) == [first_lease_of(3)]
