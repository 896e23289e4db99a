"""Schedulers, agents and engines that break one rule of high availability each."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from dgpu.core.model.ids import LeaseId, first_lease_of
from dgpu.journal.engine import Head, Leader, Term, extended
from dgpu.journal.snapshot import encode_snapshot
from dgpu.service.leadership import words
from dgpu.service.machine.inputs import AgentSaid, Begin, Committed, DecideQueued, Input
from dgpu.service.machine.outputs import Append, Output, Reply, Tell
from dgpu.service.machine.scheduler import Scheduler
from dgpu.sim.two.candidacy import SimCandidacy
from dgpu.sim.two.life import Life
from dgpu.sim.two.truth import Truth
from dgpu.wire.proto import agent_pb2 as pb


class AnswersTooEarly(Scheduler):
    """Answers a submit when it is decided, not when it is committed."""

    def on_input(self, value: Input, now: int) -> list[Output]:
        outputs = super().on_input(value, now)
        group = self._commit.in_flight
        if group is None or not any(isinstance(output, Append) for output in outputs):
            return outputs
        early = [pair for pair in group.results if isinstance(pair[0], int) and isinstance(pair[1], tuple)]
        later = tuple(pair for pair in group.results if pair not in early)
        self._commit.in_flight = msgspec.structs.replace(group, results=later)
        replies = [Reply(request_id=origin, result=result) for origin, result in early]  # type: ignore[arg-type]
        return [*replies, *outputs]


class AcknowledgesHeartbeatsAtOnce(Scheduler):
    """Does not wait for a confirmation that it still leads."""

    def on_input(self, value: Input, now: int) -> list[Output]:
        outputs = super().on_input(value, now)
        if isinstance(value, AgentSaid) and value.message.WhichOneof("body") == "heartbeat":
            ack = pb.FromScheduler(heartbeat_ack=pb.HeartbeatAck(seq=value.message.heartbeat.seq))
            outputs.insert(0, Tell(connection_id=value.connection_id, message=ack))
        return outputs


class WelcomesAtOnce(Scheduler):
    """Welcomes a node before its registration is committed: a deposed scheduler does so too."""

    def on_input(self, value: Input, now: int) -> list[Output]:
        outputs = super().on_input(value, now)
        if isinstance(value, AgentSaid) and value.message.WhichOneof("body") == "register":
            welcome = pb.Welcome(
                epoch=self.state.epoch,
                nonce=self.state.nonces.get(self.state.epoch, ""),
                cluster_id=self.state.cluster_id,
                keep=[lease.lease_id for lease in value.message.register.leases],
            )
            message = pb.FromScheduler(welcome=welcome)
            outputs.insert(0, Tell(connection_id=value.connection_id, message=message))
        return outputs


class OrdersTooEarly(Scheduler):
    """Sends orders when they are decided, not when they are committed."""

    def on_input(self, value: Input, now: int) -> list[Output]:
        outputs = super().on_input(value, now)
        group = self._commit.in_flight
        if not isinstance(value, DecideQueued) or not any(isinstance(output, Append) for output in outputs):
            return outputs
        events = group.events if group is not None else ()
        return [*self._route(self._agents.on_released((), events, now)), *outputs]


class CountsFromProcessStart(Scheduler):
    """Counts nodes as contacted at the start of the process, not when the leader key was won."""

    def on_input(self, value: Input, now: int) -> list[Output]:
        if isinstance(value, Begin):
            self._agents.begin = lambda _now: None  # type: ignore[method-assign]
        return super().on_input(value, now)


class ReusesLeaseIds(Scheduler):
    """Counts leases from the first one again when it begins an epoch."""

    def on_input(self, value: Input, now: int) -> list[Output]:
        outputs = super().on_input(value, now)
        if isinstance(value, Committed) and not self._was_reset:
            self._was_reset = True
            self.state.next_lease_id = LeaseId(first_lease_of(1))
        return outputs

    _was_reset = False


class SnapshotsItsMemory(Life):
    """Takes the snapshot for the engine from the live state, which may hold a group that is not committed."""

    def snapshot_at(self, index: int) -> bytes:
        return encode_snapshot(self.state, index=index, epoch=self.state.epoch)


class TrustsKeepalives(SimCandidacy):
    """Takes an answered renewal for a confirmation."""

    def confirm(self, done: Callable[[], None]) -> None:
        term = self.machine.term
        if term is not None:
            self._ask(
                lambda answer: self._engine.renew(term, answer),
                then=lambda _: done(),
                on_unknown=lambda: self._later(100, lambda: self.confirm(done)),
            )

    def _renew(self, term: Term) -> None:
        sent_at_ms = self.now_ms()
        self._ask(
            lambda answer: self._engine.renew(term, answer),
            to=words.Renew,
            then=lambda _: self._on_renewed(sent_at_ms),
        )


class TakesUnknownForFailed(SimCandidacy):
    """Answers that nothing was stored when the engine did not answer."""

    def _send(
        self,
        term: Term,
        before: Head,
        group: Append,
        record: bytes,
        done: Callable[[], None],
        not_stored: Callable[[], None],
    ) -> None:
        def committed(head: Head) -> None:
            self._head = head
            self._copy.write_later(record, self._owner.guarded(done))

        self._ask(
            lambda answer: self._engine.commit(term, before, group.index, group.epoch, record, answer),
            then=committed,
            on_unknown=not_stored,
            on_full=not_stored,
        )


class PromotesWithoutTail(SimCandidacy):
    """Asks for the key and leads as soon as no scheduler does, without the last groups of its predecessor."""

    def _catch_up(self, head: Head, leader: Leader | None, asked_at_ms: int) -> None:
        if self.machine.term is None and leader is not None:
            super()._catch_up(head, leader, asked_at_ms)
        else:
            self._head = head
            self.put(words.Followed(asked_at_ms=asked_at_ms, leader=leader))


class WritesLocallyFirst(SimCandidacy):
    """Writes a group to the local files before it is committed."""

    def _send(
        self,
        term: Term,
        before: Head,
        group: Append,
        record: bytes,
        done: Callable[[], None],
        not_stored: Callable[[], None],
    ) -> None:
        if self._copy.last_index < group.index:
            self._copy.write(record)

        def committed(head: Head) -> None:
            self._head = head
            self._later(1, done)

        self._ask(
            lambda answer: self._engine.commit(term, before, group.index, group.epoch, record, answer),
            then=committed,
            on_unknown=lambda: self._later(
                100, lambda: self._send(term, before, group, record, done, not_stored)
            ),
            on_full=not_stored,
        )


class IgnoresHead(Truth):
    """Compares only the leader key."""

    def commit(self, term: Term, before: Head, index: int, epoch: int, record: bytes, now_ms: int) -> Head:
        last = self.head
        if last.chain != extended(before.chain, record):
            before = msgspec.structs.replace(before, revision=last.revision)
        return super().commit(term, before, index, epoch, record, now_ms)
