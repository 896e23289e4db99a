"""Sessions of agents, without I/O: messages and committed events in, messages and commands out.

A session begins with Register, which becomes a command like any other. The node gets no message before that command is
durable. An order leaves after the commit of its event; a report is acknowledged after its own commit. A node that
reconnects names the leases it holds, and orders that it never received are sent again. contact.py covers silence.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import msgspec

from dgpu.core.commands import (
    ChangeInventory,
    Command,
    DrainNode,
    LoseNode,
    RegisterNode,
    ResumeNode,
)
from dgpu.core.events import Event
from dgpu.core.identity import is_same_run
from dgpu.core.model.ids import GpuId, LeaseId, NodeId
from dgpu.core.rejections import Rejection
from dgpu.core.state import ClusterState
from dgpu.service.machine import agent_words as words
from dgpu.service.machine import call_words
from dgpu.service.machine.agent_words import GpuSample, Malformed
from dgpu.service.machine.conditions import Conditions
from dgpu.service.machine.contact import AgentRules, Contacts, NodeContact
from dgpu.service.machine.fences import contradiction, foreign_cluster
from dgpu.service.machine.observer import Observer
from dgpu.service.machine.orders import orders_after, orders_at_welcome, standing_leases
from dgpu.service.machine.outputs import HangUp, Output, Remark, Tell
from dgpu.service.machine.progress import ProgressBook
from dgpu.service.machine.refusals import refused, turned_away, why_refused
from dgpu.service.machine.start_orders import StartOrders
from dgpu.service.secrets.opened import Opener
from dgpu.wire.isolation import KEY
from dgpu.wire.proto import agent_pb2 as pb

_MAX_UNACKED = 1_000  # report messages of one session; an agent that sends more ignores the protocol


class Registering(msgspec.Struct, frozen=True, kw_only=True):
    connection_id: int


class Reported(msgspec.Struct, frozen=True, kw_only=True):
    connection_id: int
    seq: int


Origin: TypeAlias = Registering | Reported


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """A command for the pipeline. Without a command, it is only a turn: its origin is notified when the turn comes."""

    command: Command | None
    origin: Origin | None = None


Effect: TypeAlias = Output | Ask
Result: TypeAlias = tuple[Event, ...] | Rejection | None  # None: a turn, or a command that hit a bug


class _Session:
    __slots__ = ("boot_id", "connection_id", "held", "id", "node_id", "refused", "unacked", "welcomed")

    def __init__(self, connection_id: int, session_id: str, command: RegisterNode) -> None:
        self.connection_id = connection_id
        self.id = session_id
        self.node_id = command.node_id
        self.boot_id = command.boot_id
        self.held = command.held
        self.welcomed = False
        self.refused = False  # a report on another node's lease, which is logged once
        self.unacked = 0


class Agents:
    def __init__(
        self, state: ClusterState, rules: AgentRules, started_at: int, opener: Opener | None = None
    ) -> None:
        self.telemetry: dict[GpuId, GpuSample] = {}
        self._state = state
        self._rules = rules
        self._contacts = Contacts(state, rules, started_at)
        self._sessions: dict[int, _Session] = {}
        self._by_node: dict[NodeId, _Session] = {}
        self._observer = Observer()
        self._conditions = Conditions(state)
        self._starts = StartOrders(state, opener, rules.isolation)
        self.progress = ProgressBook(state)

    def contact(self, node_id: NodeId) -> NodeContact:
        session = self._by_node.get(node_id)
        connected = session is not None and session.welcomed
        return NodeContact(
            connected=connected,
            heard_at=self._contacts.heard_at(node_id),
            clock_ahead_ms=self._contacts.clock_ahead_ms(node_id) if connected else 0,
        )

    def session_of(self, node_id: NodeId) -> str:
        """The session in which a node is registered now; empty: not registered."""
        session = self._by_node.get(node_id)
        return session.id if session is not None and session.welcomed else ""

    def on_said(self, connection_id: int, message: pb.FromAgent, now: int) -> list[Effect]:
        session = self._sessions.get(connection_id)
        try:
            if session is None:
                return self._on_first(connection_id, message, now)
            self._contacts.heard(session.node_id, now)
            return self._on_later(session, message, now)
        except Malformed as error:
            if session is not None:
                self._drop(session)
            return [HangUp(connection_id=connection_id, reason=str(error), fault=True)]

    def on_left(self, connection_id: int) -> list[Effect]:
        """The node may reconnect soon: only silence makes it lost."""
        session = self._sessions.get(connection_id)
        if session is not None:
            self._drop(session)
        return []

    def begin(self, now: int) -> None:
        self._contacts.begin(now)

    def stalled(self, now: int) -> None:
        """The scheduler itself was silent until now."""
        self._contacts.stalled(now)

    def keep_streams(self) -> list[Output]:
        """Messages that renew no lease: no heartbeat has this number. Agents hear them and stay connected."""
        idle = pb.FromScheduler(heartbeat_ack=pb.HeartbeatAck(seq=0))
        return [
            Tell(connection_id=session.connection_id, message=idle)
            for session in self._by_node.values()
            if session.welcomed
        ]

    def on_time(self, now: int) -> list[Effect]:
        effects: list[Effect] = []
        for command in self._contacts.overdue(now):
            if isinstance(command, LoseNode):
                # The old stream must not half restore the node: the node must register again.
                session = self._by_node.get(command.node_id)
                if session is not None:
                    self._drop(session)
                    effects.append(HangUp(connection_id=session.connection_id, reason=command.reason))
            effects.append(Ask(command=command))
        self._forget_removed()
        return effects

    def on_released(
        self, results: Iterable[tuple[Origin, Result]], events: Sequence[Event], now: int
    ) -> list[Effect]:
        """A group is durable: answers first, then the orders that follow from it."""
        effects: list[Effect] = []
        welcomed: set[NodeId] = set()
        acks: dict[int, int] = {}  # an acknowledgement covers all lower numbers
        for origin, result in results:
            session = self._sessions.get(origin.connection_id)
            if session is None:
                continue  # replaced or gone: the new session reports again
            if isinstance(origin, Reported):
                session.unacked -= 1
                acks[origin.connection_id] = origin.seq
            elif isinstance(result, tuple):
                welcomed.add(session.node_id)
                effects += self._welcome(session, now)
            else:
                effects += self._refuse(session, result)
        # Newly welcomed nodes got their orders with Welcome.
        orders = [
            self._tell(self._by_node[node_id], message, now)
            for node_id, message in orders_after(
                self._state,
                events,
                lambda node_id: node_id not in welcomed and self._listens(node_id),
                self._starts,
            )
        ]
        for order in orders:
            # One message instead of two: the end of a task is usually followed by the start of another in its place.
            if seq := acks.pop(order.connection_id, 0):
                order.message.orders.reports_ack = seq
        for connection_id, seq in acks.items():
            ack = pb.FromScheduler(reports_ack=pb.ReportsAck(seq=seq))
            effects.append(self._tell(self._sessions[connection_id], ack, now))
        effects += orders
        effects += [Ask(command=command) for command in self._starts.take_failed()]
        return effects

    # Messages

    def _on_first(self, connection_id: int, message: pb.FromAgent, now: int) -> list[Effect]:
        if message.WhichOneof("body") != "register":
            raise Malformed("the first message must be Register")
        register = message.register
        command = words.registration(register)
        if reason := foreign_cluster(self._state, register):
            return [*turned_away(connection_id, command.node_id, reason)]
        if contradicted := contradiction(self._state, register, command):
            return [contradicted, *turned_away(connection_id, command.node_id, contradicted.reason)]
        effects: list[Effect] = []
        older = self._by_node.get(command.node_id)
        if older is not None:
            if older.boot_id != command.boot_id and self._contacts.is_fresh(command.node_id, now):
                reason = f"another machine is connected as {command.node_id}; give this one its own id"
                return [refused(connection_id, reason), HangUp(connection_id=connection_id, reason=reason)]
            self._drop(older)
            effects.append(HangUp(connection_id=older.connection_id, reason="replaced by a newer connection"))
        session = _Session(connection_id, register.session_id, command)
        self._sessions[connection_id] = session
        self._by_node[session.node_id] = session
        self._contacts.heard(session.node_id, now)
        effects.append(Ask(command=command, origin=Registering(connection_id=connection_id)))
        if unfit := self._not_isolated(command.enforced, command.not_isolated):
            # In the same group: no task may be placed on the node in between.
            effects.append(_take_out(command.node_id, unfit))
        return effects

    def _on_later(self, session: _Session, message: pb.FromAgent, now: int) -> list[Effect]:
        body = message.WhichOneof("body")
        if body == "heartbeat":
            return self._on_heartbeat(session, message.heartbeat, now)
        if not session.welcomed:
            raise Malformed("only Heartbeat may follow Register before Welcome")
        if body == "reports":
            return self._on_reports(session, message.reports)
        if body == "workers":
            return self._on_workers(session, message.workers, now)
        if body == "inventory":
            gpus = words.inventory(session.node_id, message.inventory.gpus)
            return [Ask(command=ChangeInventory(node_id=session.node_id, gpus=gpus))]
        if body == "workers":
            return []  # the scheduler has no use for them yet
        if body == "checked":
            checked = self._state.gpus.get(GpuId(message.checked.uuid))
            if checked is None or checked.node_id != session.node_id:
                return []  # the GPU left the node's list meanwhile
            return [Ask(command=words.checked(checked.id, message.checked))]
        raise Malformed("unknown or repeated message")

    def _on_heartbeat(self, session: _Session, heartbeat: pb.Heartbeat, now: int) -> list[Effect]:
        effects: list[Effect] = []
        if not session.welcomed:
            return effects
        ack = pb.HeartbeatAck(seq=heartbeat.seq, other_rest_urls=self._rules.other_rest_urls())
        effects.append(self._tell(session, pb.FromScheduler(heartbeat_ack=ack), now))
        node = self._state.nodes[session.node_id]
        unfit = heartbeat.unfit or self._not_isolated(node.enforced, node.not_isolated)
        effects += self._take_out_or_back(session.node_id, unfit)
        if heartbeat.wall_ms:
            self._contacts.clock_said(session.node_id, heartbeat.wall_ms - self._state.wall_ms(now))
        for reading in heartbeat.samples:
            gpu = self._state.gpus.get(GpuId(reading.uuid))
            if gpu is not None and gpu.node_id == session.node_id:
                sample = words.sample(reading, now)
                self.telemetry[gpu.id] = sample
                effects += [Ask(command=seen) for seen in self._observer.observe(gpu, sample, now)]
                for told in self._conditions.look(gpu, sample, now):
                    effects.append(Ask(command=told) if isinstance(told, Command) else told)
        return effects

    def _take_out_or_back(self, node_id: NodeId, unfit: str) -> list[Effect]:
        """A node that reports itself unfit gets no tasks until it reports otherwise. A drain by an operator stays."""
        node = self._state.nodes[node_id]
        if unfit and not node.draining:
            return [_take_out(node_id, unfit)]
        if not unfit and node.draining and words.is_reason_of_node(node.drain_reason):
            return [Ask(command=ResumeNode(node_id=node_id, drained_for=node.drain_reason))]
        return []

    def _not_isolated(self, enforced: tuple[str, ...], reason: str) -> str:
        """Why the node must get no tasks: they would run as the agent's user, with the rights of all others."""
        if not self._rules.isolation.has_boundary or "users" in enforced:
            return ""
        return (
            f"{KEY} is set, but {reason or 'its agent is of a version that cannot run tasks as other users'}"
        )

    def _on_reports(self, session: _Session, reports: pb.Reports) -> list[Effect]:
        session.unacked += 1
        if session.unacked > _MAX_UNACKED:
            raise Malformed(f"more than {_MAX_UNACKED} reports without waiting for their acknowledgement")
        started = [report for report in reports.started if self._may_report(session, report.lease_id)]
        returned = [report for report in reports.returned if self._may_report(session, report.lease_id)]
        finished = [report for report in reports.finished if self._may_report(session, report.lease_id)]
        effects: list[Effect] = [Ask(command=words.started(report)) for report in started]
        # Calls that were lost with their worker are reported before its end.
        effects += [Ask(command=call_words.returned(report)) for report in returned]
        effects += [Ask(command=words.finished(report)) for report in finished]
        if len(effects) < len(reports.started) + len(reports.returned) + len(reports.finished):
            effects += self._refuse_foreign(session, reports)
        # A report on a released lease changes nothing. But the release is certain only after its commit, so every
        # acknowledgement takes its turn.
        turn = Reported(connection_id=session.connection_id, seq=reports.seq)
        effects.append(Ask(command=None, origin=turn))
        return effects

    def _refuse_foreign(self, session: _Session, reports: pb.Reports) -> list[Effect]:
        """Reports on leases of other nodes change nothing. They are acknowledged, or the agent would repeat them."""
        if session.refused:
            return []
        session.refused = True
        parts = (reports.started, reports.returned, reports.finished)
        told = [report.lease_id for part in parts for report in part]
        foreign = next(lease_id for lease_id in told if not self._may_report(session, lease_id))
        reason = f"lease {foreign} belongs to node {self._state.leases[LeaseId(foreign)].node_id}"
        facts: dict[str, str | int] = {"node": session.node_id, "lease": foreign, "reason": reason}
        return [Remark(event="report_refused", facts=facts)]

    def _on_workers(self, session: _Session, told: pb.Workers, now: int) -> list[Effect]:
        self.progress.note(session.node_id, told, now)
        own = [state for state in told.states if self._may_report(session, state.lease_id)]
        return [Ask(command=call_words.workers(pb.Workers(states=own), now))] if own else []

    def _may_report(self, session: _Session, lease_id: int) -> bool:
        lease = self._state.leases.get(LeaseId(lease_id))
        return lease is None or lease.node_id == session.node_id

    # After a commit

    def _welcome(self, session: _Session, now: int) -> list[Effect]:
        session.welcomed = True
        stand = {lease.id for lease in standing_leases(self._state, session.node_id)}
        held = {each.lease_id for each in session.held if is_same_run(self._state, each)}
        welcome = pb.Welcome(
            epoch=self._state.epoch,
            cluster_id=self._state.cluster_id,
            nonce=self._state.nonce,
            task_lease_ms=self._rules.task_lease_ms,
            lease_action=self._rules.lease_action,
            heartbeat_timeout_ms=self._rules.heartbeat_timeout_ms,
            keep=sorted(held & stand),
            rest_url=self._rules.rest_url,
            other_rest_urls=self._rules.other_rest_urls(),
        )
        session.held = ()
        return [
            self._tell(session, message, now)
            for message in (
                pb.FromScheduler(welcome=welcome),
                *orders_at_welcome(self._state, session.node_id, held, self._starts),
            )
        ]

    def _refuse(self, session: _Session, result: Rejection | None) -> list[Effect]:
        self._drop(session)
        reason = why_refused(result)
        return [*turned_away(session.connection_id, session.node_id, reason)]

    def _forget_removed(self) -> None:
        self._contacts.forget_removed(self._by_node)
        if len(self.telemetry) > len(self._state.gpus):
            for gpu_id in [gpu_id for gpu_id in self.telemetry if gpu_id not in self._state.gpus]:
                del self.telemetry[gpu_id]
                self._observer.forget(gpu_id)
                self._conditions.forget(gpu_id)

    def _listens(self, node_id: NodeId) -> bool:
        session = self._by_node.get(node_id)
        return session is not None and session.welcomed

    def _tell(self, session: _Session, message: pb.FromScheduler, now: int) -> Tell:
        self._contacts.told(session.node_id, now)
        return Tell(connection_id=session.connection_id, message=message)

    def _drop(self, session: _Session) -> None:
        self._sessions.pop(session.connection_id, None)
        if self._by_node.get(session.node_id) is session:
            del self._by_node[session.node_id]


def _take_out(node_id: NodeId, unfit: str) -> Ask:
    return Ask(command=DrainNode(node_id=node_id, reason=words.reason_of_node(unfit), keeps_reason=True))
