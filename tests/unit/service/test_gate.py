from __future__ import annotations

import pytest

from dgpu.core.commands import RemoveNode
from dgpu.core.model.ids import NodeId
from dgpu.core.rejections import UnknownNode
from dgpu.core.state import ClusterState
from dgpu.journal.memory import MemoryJournal
from dgpu.service.machine import scheduler
from dgpu.service.machine.contact import AgentRules
from dgpu.service.machine.inputs import (
    AgentSaid,
    Confirmed,
    Followed,
    Loaded,
    Read,
    TimePassed,
)
from dgpu.service.machine.outputs import Append, Confirm, LoadCommitted, Output, Publish, ReadNow, Reply, Tell
from dgpu.service.machine.scheduler import Scheduler
from unit.service.cluster import Bench, heartbeat, hung_up, register, submit, told


class GatedBench(Bench):
    def __init__(self, **rules: int) -> None:
        super().__init__(begins=False)
        self.scheduler = Scheduler(
            self.state, last_index=0, rules=AgentRules(**rules), started_at=self.now, is_gated=True
        )
        self.begin()

    def hear(self, connection: int, message: object) -> list[Output]:
        return self.put(AgentSaid(connection_id=connection, message=message))  # type: ignore[arg-type]

    def pass_time(self, ms: int) -> list[Output]:
        outputs: list[Output] = []
        until = self.now + ms
        while self.now < until:
            self.now = min(until, self.now + 1_000)
            outputs += self.put(TimePassed())
        return outputs


def confirms(outputs: list[Output]) -> list[int]:
    return [output.ticket for output in outputs if isinstance(output, Confirm)]


def reads(outputs: list[Output]) -> list[tuple[int, bool]]:
    return [(o.request_id, o.is_stale) for o in outputs if isinstance(o, ReadNow)]


def lost(bench: Bench) -> list[str]:
    return [node.id for node in bench.state.nodes.values() if node.offline_since]


def test_a_heartbeat_is_acknowledged_after_a_confirmation() -> None:
    """An acknowledgement renews task leases. A deposed master must not send one."""
    bench = GatedBench()
    bench.say(1, register())
    outputs = bench.hear(1, heartbeat(seq=4))
    assert told(outputs) == []
    (ticket,) = confirms(outputs)
    assert [m.heartbeat_ack.seq for m in told(bench.put(Confirmed(ticket=ticket)))] == [4]


def test_one_confirmation_is_in_flight_and_does_not_cover_later_causes() -> None:
    bench = GatedBench()
    bench.say(1, register())
    (first,) = confirms(bench.hear(1, heartbeat(seq=1)))
    assert confirms(bench.hear(1, heartbeat(seq=2))) == []
    outputs = bench.put(Confirmed(ticket=first))
    assert [m.heartbeat_ack.seq for m in told(outputs)] == [1]
    (second,) = confirms(outputs)
    assert [m.heartbeat_ack.seq for m in told(bench.put(Confirmed(ticket=second)))] == [2]


def test_a_commit_that_was_sent_after_the_cause_confirms_it() -> None:
    bench = GatedBench()
    bench.say(1, register())
    bench.hear(1, heartbeat(seq=1))
    bench.ask(submit())
    bench.decide()
    bench.hear(1, heartbeat(seq=2))  # read after the group was sent
    assert [m.heartbeat_ack.seq for m in told(bench.commit()) if m.HasField("heartbeat_ack")] == [1]


def test_a_refusal_without_a_commit_waits() -> None:
    bench = GatedBench()
    bench.ask(RemoveNode(node_id=NodeId("nowhere")))
    outputs = bench.decide()
    assert not [o for o in outputs if isinstance(o, Reply | Append)]
    (reply,) = [o for o in bench.put(Confirmed(ticket=confirms(outputs)[0])) if isinstance(o, Reply)]
    assert reply.result == UnknownNode(node_id=NodeId("nowhere"))


def test_an_agent_is_turned_away_after_a_confirmation() -> None:
    """A deposed master sees agents that obey a later epoch. It must neither refuse them nor note that epoch."""
    bench = GatedBench()
    outputs = bench.hear(1, register(epoch=9))
    assert (told(outputs), hung_up(outputs)) == ([], [])
    assert not [o for o in outputs if type(o).__name__ == "Contradicted"]
    released = bench.put(Confirmed(ticket=confirms(outputs)[0]))
    assert [m.HasField("refused") for m in told(released)] == [True]
    assert hung_up(released)


def test_a_welcome_without_a_commit_waits_and_precedes_later_orders() -> None:
    bench = GatedBench()
    bench.say(1, register())
    bench.hear(2, register())  # the same node again: the registration may change nothing
    outputs = bench.decide()
    if any(isinstance(o, Append) for o in outputs):
        outputs += bench.commit()
    else:
        assert told(outputs, 2) == []
        bench.ask(submit())
        bench.decide()
        outputs = bench.commit()
    kinds = [m.WhichOneof("body") for m in told(outputs, 2)]
    assert kinds[0] == "welcome"


def test_a_read_waits_for_a_confirmation_and_for_the_group_in_flight() -> None:
    bench = GatedBench()
    (ticket,) = confirms(bench.put(Read(request_id=50)))
    bench.ask(submit())
    bench.decide()
    bench.put(Read(request_id=51))
    assert reads(bench.put(Confirmed(ticket=ticket))) == []  # the state holds a group that may be lost
    outputs = bench.commit()
    assert reads(outputs) == [(50, False)]  # the group was sent before 51 was read
    bench.put(Confirmed(ticket=ticket + 1))
    outputs = bench.put(Read(request_id=52))
    assert reads(bench.put(Confirmed(ticket=ticket + 2))) == [(52, False)]


def test_reads_of_an_idle_scheduler_go_stale_after_their_patience() -> None:
    bench = GatedBench()
    bench.put(Read(request_id=50))
    bench.now += 249
    assert reads(bench.put(TimePassed())) == []
    bench.now += 1
    assert reads(bench.put(TimePassed())) == [(50, True)]
    assert reads(bench.put(Read(request_id=51))) == [(51, True)]  # the stall is known: no further wait


def test_reads_in_a_long_commit_see_the_state_before_it() -> None:
    bench = GatedBench()
    journal = MemoryJournal()
    journal.recover()
    for group in bench.appended:
        journal.append(group.epoch, group.index, group.payload)
    bench.ask(submit())
    bench.decide()
    bench.put(Read(request_id=50))
    bench.now += 250
    outputs = bench.put(TimePassed())
    assert reads(outputs) == []
    (load,) = [o for o in outputs if isinstance(o, LoadCommitted)]
    outputs = bench.put(Loaded(index=load.index, state=journal.committed_state()))
    assert reads(outputs) == [(50, True)]
    assert len(bench.state.tasks) == 0  # the submit is not committed
    assert reads(bench.put(Read(request_id=51))) == [(51, True)]
    bench.commit()
    assert len(bench.state.tasks) == 1
    assert len(bench.scheduler.state.tasks) == 1


def test_a_state_that_was_loaded_too_late_is_not_used() -> None:
    bench = GatedBench()
    bench.ask(submit())
    bench.decide()
    bench.put(Read(request_id=50))
    bench.now += 250
    bench.put(TimePassed())
    bench.commit()
    bench.ask(submit())
    bench.decide()
    bench.put(Loaded(index=bench.scheduler.committed_index - 1, state=ClusterState()))
    assert len(bench.state.tasks) == 2


def test_a_stall_keeps_streams_open_without_a_renewal() -> None:
    bench = GatedBench()
    bench.say(1, register())
    bench.hear(1, heartbeat(seq=1))
    outputs = bench.pass_time(20_000)
    assert {m.heartbeat_ack.seq for m in told(outputs)} == {0}  # no heartbeat has this number
    assert len(told(outputs)) >= 19


def test_a_node_that_was_silent_in_a_stall_gets_its_whole_lease_afterwards() -> None:
    bench = GatedBench(heartbeat_timeout_ms=15_000, task_lease_ms=60_000)
    bench.say(1, register())
    bench.ask(submit())
    bench.decide()
    bench.leave(1)
    bench.pass_time(100_000)
    bench.commit()
    bench.settle()
    bench.wait(59_000)
    assert lost(bench) == []
    bench.wait(2_000)
    assert lost(bench) == ["n1"]


def test_a_node_that_falls_silent_after_a_stall_is_lost_as_usual() -> None:
    bench = GatedBench(heartbeat_timeout_ms=15_000, task_lease_ms=60_000)
    bench.say(1, register())
    bench.ask(submit())
    bench.decide()
    bench.pass_time(10_000)
    bench.commit()
    bench.settle()
    bench.now += 1
    ticket = confirms(bench.hear(1, heartbeat(seq=2)))
    bench.put(Confirmed(ticket=ticket[0]))
    bench.leave(1)
    bench.wait(16_000)
    assert lost(bench) == ["n1"]


def test_a_lone_scheduler_answers_at_once() -> None:
    bench = Bench()
    bench.say(1, register())
    outputs = bench.put(AgentSaid(connection_id=1, message=heartbeat(seq=3)))
    assert [m.heartbeat_ack.seq for m in told(outputs)] == [3]
    assert reads(bench.put(Read(request_id=1))) == [(1, False)]


def test_a_standby_applies_groups_of_others_and_sends_nothing() -> None:
    leader, standby = Bench(begins=False), Bench(begins=False)
    published: list[Publish] = []
    leader.begin()
    leader.say(1, register())
    leader.ask(submit())
    published += [o for o in leader.settle() if isinstance(o, Publish)]
    journal = MemoryJournal()
    journal.recover()
    for group in leader.appended:
        journal.append(group.epoch, group.index, group.payload)
    for each in journal.groups():
        outputs = standby.put(Followed(index=each.index, events=tuple(each.events)))
        assert [type(output) for output in outputs] == [Publish]
        assert not [output for output in outputs if isinstance(output, Tell)]
    assert standby.scheduler.committed_index == leader.scheduler.committed_index
    assert standby.state.tasks == leader.state.tasks


def test_a_takeover_counts_every_node_as_contacted_at_that_moment() -> None:
    """The predecessor may have renewed leases until it lost the key, long after this process started."""
    old = Bench()
    old.say(1, register())
    bench = Bench(old.state, last_index=old.scheduler.committed_index, begins=False, task_lease_ms=60_000)
    bench.now += 600_000  # it followed for ten minutes
    bench.begin()
    bench.wait(59_000)
    assert lost(bench) == []
    bench.wait(2_000)
    assert lost(bench) == ["n1"]


def test_a_takeover_releases_no_lease_before_the_time_of_a_lease() -> None:
    """The predecessor may have acknowledged a heartbeat of the node until it lost the key."""
    old = Bench(task_lease_ms=60_000, lease_margin_ms=5_000)
    old.say(1, register())
    old.ask(submit())
    old.settle()
    old.leave(1)
    old.wait(20_000)
    assert lost(old) == ["n1"]
    bench = Bench(old.state, last_index=old.scheduler.committed_index, begins=False, task_lease_ms=60_000)
    bench.now = old.now + 600_000
    bench.begin()
    bench.wait(64_000)
    assert len(bench.state.leases) == 1
    bench.wait(2_000)
    assert len(bench.state.leases) == 0


def test_due_work_does_not_wake_a_stalled_scheduler_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot be decided before the engine answers: the scheduler would spin."""
    bench = GatedBench()
    bench.say(1, register())
    (ticket,) = confirms(bench.hear(1, heartbeat(seq=1)))
    monkeypatch.setattr(scheduler, "next_wake_at", lambda _state: bench.now - 10)
    bench.pass_time(2_000)
    assert bench.scheduler.wake_at() == bench.now + 1_000
    bench.put(Confirmed(ticket=ticket))
    assert bench.scheduler.wake_at() < bench.now
