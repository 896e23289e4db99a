"""An agent that finds workers of an earlier agent, and calls that were given away."""

from __future__ import annotations

import msgspec

from dgpu.agent.lifecycle_words import ThawRuns
from dgpu.agent.run.runner import KnownRun, RunsFrozen, RunsListed
from dgpu.agent.session_words import (
    Dial,
    Disconnected,
)
from dgpu.agent.workers.machine import ADOPTED_HELLO_MS, REGISTER_MS
from dgpu.agent.workers.words import (
    WorkerHungUp,
)
from dgpu.core.model.ids import LeaseId
from dgpu.core.model.task import Outcome
from dgpu.worker import frames
from worker_node import (
    WORKER,
    Node,
    call,
    claims,
    done,
    held_call,
    known_worker,
    node_with_worker,
)


def test_the_node_registers_when_its_workers_have_named_their_calls() -> None:
    """The scheduler places a call again if the node does not hold it: it would run twice."""
    node = Node().feed(RunsListed(runs=(known_worker(),)))
    assert node.take(Dial) == []
    node.say(claims(held_call(20, "running"), held_call(21, "done")))
    assert len(node.take(Dial)) == 1
    node.connect(keep=(7, 20, 21))
    held = {each.lease_id: each for each in node.messages[0].register.leases}
    assert set(held) == {7, 20, 21}
    assert (held[20].task_id, held[20].attempt, held[20].nonce, held[20].worker_lease_id) == (120, 1, "x", 7)
    node.say(done(21, result=b"\x02"), frames.Ready())
    node.say(done(20))
    assert node.returned() == [(21, "returned", ""), (20, "returned", "")]


def test_a_result_that_came_before_the_registration_is_reported_after_it() -> None:
    node = Node().feed(RunsListed(runs=(known_worker(),)))
    node.say(claims(held_call(21, "done")), done(21))
    node.connect(keep=(7, 21))
    assert node.returned() == [(21, "returned", "")]


def test_a_worker_that_does_not_name_its_calls_is_ended_before_the_node_registers() -> None:
    node = Node().feed(RunsListed(runs=(known_worker(),)))
    node.wait(ADOPTED_HELLO_MS)
    assert (node.stops(), node.take(Dial)) == ([(WORKER, 0)], [])
    node.end_run(outcome=Outcome.STOPPED, signal=9)
    assert len(node.take(Dial)) == 1


def test_a_frozen_worker_of_an_earlier_agent_is_ended() -> None:
    """It cannot name its calls. A scheduler may have placed them elsewhere."""
    node = Node().feed(RunsListed(runs=(known_worker(frozen=True),)))
    assert (node.stops(), node.take(Dial)) == ([(WORKER, 0)], [])


def test_a_worker_that_cannot_be_killed_does_not_keep_the_node_away_for_ever() -> None:
    node = Node().feed(RunsListed(runs=(known_worker(frozen=True),)))
    node.wait(REGISTER_MS)
    assert len(node.take(Dial)) == 1


def test_a_call_that_the_scheduler_gave_away_ends_its_worker_before_it_can_thaw() -> None:
    node = node_with_worker()
    node.order(calls=[call(20), call(21)]).say(done(21))
    node.feed(RunsFrozen(lease_ids=(WORKER,)), Disconnected(address="m:1", reason="cut"))
    node.wait(1_500).outputs.clear()
    node.connect(keep=(7,))
    assert node.stops() == [(WORKER, 0)]
    assert node.take(ThawRuns) == []
    node.messages.clear()
    node.feed(WorkerHungUp(lease_id=WORKER)).end_run(outcome=Outcome.STOPPED, signal=9)
    assert node.returned() == []


def test_a_worker_cannot_claim_calls_of_another_one_or_calls_it_was_not_given() -> None:
    node = node_with_worker()
    other = LeaseId(8)
    node.feed(RunsListed(runs=(known_worker(), replace_lease(known_worker(), other))))
    node.order(calls=[call(20)])
    node.say(claims(held_call(20, "running")), lease=other)
    node.say(done(20, "raised", error="forged"), lease=other)
    assert node.returned() == []
    assert [lease for lease, _ in node.stops()] == [other]


def replace_lease(run: KnownRun, lease_id: LeaseId) -> KnownRun:
    return msgspec.structs.replace(run, lease_id=lease_id)


def test_the_calls_of_a_dead_keeper_are_lost() -> None:
    node = node_with_worker()
    node.order(calls=[call()])
    node.feed(RunsListed(runs=()))
    assert node.returned() == [(20, "worker_lost", "its worker ended (node_fault): its keeper died")]
    assert node.machine.workers.book.workers == {}
