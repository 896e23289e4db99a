"""A node's conversation with the scheduler. A machine without I/O.

All addresses are dialled at once: only the master welcomes a registration, and a node does not know which one it is.
The first welcome is kept and the other calls end; then heartbeats and reports until the stream ends; then all again.
A call that fails is repeated after a pause that doubles. The node obeys only orders of its own cluster, under the
highest epoch it has ever seen. Both are on disk before the first order is obeyed.
"""

from __future__ import annotations

from collections.abc import Callable

from dgpu.agent.epoch import Joined
from dgpu.agent.lifecycle_words import Ordered, Report, Welcomed, Woke
from dgpu.agent.probe.probe import Sample
from dgpu.agent.run.runner import RunnerFit
from dgpu.agent.session_calls import (
    DEFAULT_SILENCE_MS,
    NEVER_MS,
    SAMPLE_AHEAD_MS,
    Call,
    CallState,
    Pauses,
    Stream,
    beat_ms,
    calls_to,
    shorter_beat,
)
from dgpu.agent.session_words import (
    Begin,
    CardChecked,
    CheckCard,
    Connected,
    Dial,
    Disconnected,
    EpochSaved,
    Flush,
    GpusFound,
    HangUp,
    Identity,
    NodeGpu,
    Note,
    Opened,
    Received,
    Sampled,
    SaveEpoch,
    Send,
    SessionInput,
    SessionOutput,
    SessionSettings,
    TakeSamples,
    Written,
    checked_message,
    gpu_message,
    register_message,
    run_order,
    sample_message,
)
from dgpu.agent.workers.calls import WorkersSeen, call_order, workers_message
from dgpu.core.model.ids import GpuId, LeaseId
from dgpu.wire.proto import agent_pb2 as pb

ANSWER_MS = 10_000  # time for a scheduler to accept the call and to send a welcome
_NOT_TALKING = {CallState.IDLE, CallState.WAITING, CallState.HANGING_UP}

__all__ = ["NEVER_MS", "Session"]


class Session:
    def __init__(
        self,
        *,
        identity: Identity,
        settings: SessionSettings,
        joined: Joined,
        jitter: Callable[[], float],
        new_session_id: Callable[[], str],
    ) -> None:
        self.identity = identity  # of the next registration
        self._settings = settings
        self._pauses = Pauses(settings, jitter)
        self._new_session_id = new_session_id
        self._calls = calls_to(settings.addresses)
        self._kept: Call | None = None  # its scheduler has sent a welcome
        self._gpus: tuple[NodeGpu, ...] = ()
        self._samples: tuple[Sample, ...] = ()
        self._unfit = ""
        self._runner_unfit = ""
        self._said_beat_ms = 0
        self.joined = joined

    @property
    def open(self) -> bool:
        return self._open_call is not None

    @property
    def wake_at_ms(self) -> int:
        return min(call.wake_at_ms for call in self._calls.values())

    @property
    def _open_call(self) -> Call | None:
        return self._kept if self._kept is not None and self._kept.state is CallState.OPEN else None

    def on_input(self, value: SessionInput, now_ms: int) -> list[SessionOutput]:
        match value:
            case Report():
                return self._on_report(value)
            case Received():
                return self._on_received(self._calls[value.address], value.message, now_ms)
            case Written():
                self._calls[value.address].stream.writable = True
                return self._write(now_ms)
            case Flush():
                return self._write(now_ms)
            case Woke():
                return [output for call in self._calls.values() for output in self._on_woke(call, now_ms)]
            case WorkersSeen():
                return self._on_seen(value)
            case Sampled():
                self._samples, self._unfit = value.samples, value.unfit
                return []
            case GpusFound():
                return self._on_gpus(value)
            case RunnerFit():
                return self._on_fit(value, now_ms)
            case CardChecked():
                return self._on_checked(value)
            case Connected():
                return self._register(self._calls[value.address], value, now_ms)
            case Disconnected():
                return self._on_disconnected(self._calls[value.address], value.reason, now_ms)
            case EpochSaved():
                return self._on_saved(value, now_ms)
            case Begin():
                return [] if self._kept else [self._dial(call, now_ms) for call in self._idle()]

    # -- getting there

    def _idle(self) -> list[Call]:
        return [call for call in self._calls.values() if call.state is CallState.IDLE]

    def _dial(self, call: Call, now_ms: int) -> SessionOutput:
        call.state = CallState.DIALING
        call.wake_at_ms = now_ms + ANSWER_MS
        return Dial(address=call.address)

    def _register(self, call: Call, connected: Connected, now_ms: int) -> list[SessionOutput]:
        if call.state is not CallState.DIALING:
            return []
        call.state = CallState.REGISTERING
        call.stream.registered_ms = now_ms
        call.session_id = self._new_session_id()
        call.wake_at_ms = now_ms + ANSWER_MS
        register = register_message(
            self.identity,
            joined=self.joined,
            session_id=call.session_id,
            gpus=self._gpus,
            held=connected.held,
        )
        call.stream.gpus_changed = False
        return [Send(address=call.address, message=pb.FromAgent(register=register))]

    def _on_disconnected(self, call: Call, reason: str, now_ms: int) -> list[SessionOutput]:
        if call.state in {CallState.IDLE, CallState.WAITING}:
            return []
        if self._kept is not None and self._kept is not call:
            call.rest()
            return []
        was_open = call.stream.was_open
        if self._kept is call:
            self._kept = None
            for other in self._idle():
                other.pause(now_ms, self._pauses.soon_ms())
        pause_ms = self._pauses.soon_ms() if was_open else self._pauses.next_ms(call)
        call.pause(now_ms, pause_ms)
        return [Note(event="scheduler_unreachable", detail=f"{reason}; next try in {pause_ms} ms")]

    def _hang_up(self, call: Call, reason: str, now_ms: int) -> list[SessionOutput]:
        call.state = CallState.HANGING_UP
        call.wake_at_ms = now_ms + ANSWER_MS
        return [HangUp(address=call.address, reason=reason)]

    def _end_others(self, kept: Call, now_ms: int) -> list[SessionOutput]:
        outputs: list[SessionOutput] = []
        for call in self._calls.values():
            if call is not kept and call.state not in _NOT_TALKING:
                outputs += self._hang_up(call, f"{kept.address} is the master", now_ms)
            elif call.state is CallState.WAITING:
                call.rest()
        return outputs

    # -- what the scheduler says

    def _on_received(self, call: Call, message: pb.FromScheduler, now_ms: int) -> list[SessionOutput]:
        dead = call.stream.why_dead(now_ms, has_others=call.has_others)
        if dead and call.state is CallState.OPEN:
            # This process was stopped meanwhile. The scheduler has given the node up, and its orders may be void.
            return self._hang_up(call, dead, now_ms)
        call.stream.last_word_ms = now_ms
        kind = message.WhichOneof("body")
        if call.state is CallState.SAVING:
            call.stream.held_back.append(message)
            return []
        if call.state is CallState.REGISTERING:
            if kind == "welcome":
                return self._on_welcome(call, message.welcome, now_ms)
            reason = message.refused.reason if kind == "refused" else f"answered a registration by {kind}"
            note = Note(event="registration_refused", detail=f"{call.address}: {reason}")
            return [note, *self._hang_up(call, reason, now_ms)]
        if call.state is not CallState.OPEN:
            return []
        if kind == "orders":
            return self._on_orders(call, message.orders, now_ms)
        if kind == "reports_ack":
            return self._on_reports_ack(call, message.reports_ack.seq, now_ms)
        if kind == "heartbeat_ack":
            return self._on_heartbeat_ack(call, message.heartbeat_ack)
        if kind == "refused":
            return self._hang_up(call, message.refused.reason, now_ms)
        return []

    def _on_welcome(self, call: Call, welcome: pb.Welcome, now_ms: int) -> list[SessionOutput]:
        joined = Joined(cluster_id=welcome.cluster_id, epoch=welcome.epoch, nonce=welcome.nonce)
        if reason := self.joined.refuses(joined):
            note = Note(event="scheduler_refused", detail=f"{call.address}: {reason}")
            return [note, *self._hang_up(call, reason, now_ms)]
        call.stream.on_welcome(welcome)
        self._kept = call
        outputs = self._end_others(call, now_ms)
        if joined != self.joined:
            call.state = CallState.SAVING
            return [*outputs, SaveEpoch(address=call.address, joined=joined)]
        return outputs + self._enter(call, welcome, now_ms)

    def _on_saved(self, saved: EpochSaved, now_ms: int) -> list[SessionOutput]:
        self.joined = saved.joined
        call = self._kept
        if call is None or call.state is not CallState.SAVING or call.stream.welcome is None:
            return []
        outputs = self._enter(call, call.stream.welcome, now_ms)
        waiting, call.stream.held_back = call.stream.held_back, []
        for message in waiting:
            outputs += self._on_received(call, message, now_ms)
        return outputs

    def _enter(self, call: Call, welcome: pb.Welcome, now_ms: int) -> list[SessionOutput]:
        stream = call.stream
        call.state, call.failures, stream.was_open = CallState.OPEN, 0, True
        stream.last_word_ms = now_ms
        stream.silence_ms = welcome.heartbeat_timeout_ms or DEFAULT_SILENCE_MS
        stream.beat_ms = beat_ms(self._settings.heartbeat_ms, stream.silence_ms)
        stream.next_beat_ms = now_ms + stream.beat_ms
        stream.beat_due = bool(self._runner_unfit)  # reported before the scheduler sends many orders
        outputs: list[SessionOutput] = [
            *self._say_beat(stream),
            Note(event="registered", detail=f"{call.address}, epoch {welcome.epoch}"),
            *stream.heard(stream.registered_ms),
            Opened(address=call.address, session_id=call.session_id),
            Welcomed(
                keep=frozenset(LeaseId(lease_id) for lease_id in welcome.keep), cluster_id=welcome.cluster_id
            ),
        ]
        if not self._samples:
            outputs.append(TakeSamples())
        call.set_wake()
        return outputs + self._write(now_ms)

    def _say_beat(self, stream: Stream) -> list[SessionOutput]:
        """Once, and again if the scheduler's timeout changes."""
        wanted_ms = self._settings.heartbeat_ms
        if stream.beat_ms in {wanted_ms, self._said_beat_ms}:
            return []
        self._said_beat_ms = stream.beat_ms
        return [shorter_beat(stream, wanted_ms)]

    def _on_orders(self, call: Call, orders: pb.Orders, now_ms: int) -> list[SessionOutput]:
        welcome = call.stream.welcome
        lease_ms = welcome.task_lease_ms if welcome is not None and welcome.lease_action != "never" else 0
        if lease_ms and now_ms - call.stream.heard_ms >= lease_ms:
            # Read too late: other nodes may hold these leases. A new registration shows the valid ones.
            return self._hang_up(call, "orders arrived after the task lease was over", now_ms)
        starts = tuple(run_order(start, self.joined.cluster_id, call.server) for start in orders.starts)
        stops = tuple((LeaseId(stop.lease_id), stop.reason) for stop in orders.stops)
        checks = [CheckCard(gpu_id=GpuId(check.uuid), number=check.number) for check in orders.checks]
        acked = self._on_reports_ack(call, orders.reports_ack, now_ms) if orders.reports_ack else []
        calls = tuple(call_order(call, self.joined.cluster_id) for call in orders.calls)
        return [*acked, Ordered(starts=starts, stops=stops, calls=calls), *checks]

    def _on_reports_ack(self, call: Call, seq: int, now_ms: int) -> list[SessionOutput]:
        return [*call.stream.on_reports_ack(seq), *self._write(now_ms)]

    def _on_heartbeat_ack(self, call: Call, ack: pb.HeartbeatAck) -> list[SessionOutput]:
        outputs = call.stream.on_heartbeat_ack(ack)
        if outputs:
            call.set_wake()
        return outputs

    # -- what the node says

    def _on_report(self, report: Report) -> list[SessionOutput]:
        call = self._open_call
        if call is not None:  # else the lifecycle repeats everything after the next welcome
            call.stream.started.extend(report.started)
            call.stream.finished.extend(report.finished)
            call.stream.returned.extend(report.returned)
        return []

    def _on_seen(self, seen: WorkersSeen) -> list[SessionOutput]:
        call = self._open_call
        if call is not None:  # else all states are sent after the next welcome
            call.stream.states.update((state.lease_id, state) for state in seen.states)
            call.stream.progress.update((each.lease_id, each) for each in seen.progress)
        return []

    def _on_gpus(self, found: GpusFound) -> list[SessionOutput]:
        if found.gpus == self._gpus:
            return []
        self._gpus = found.gpus
        self._samples = ()  # older than the list, and perhaps different about a fault
        for call in self._calls.values():
            call.stream.gpus_changed = True
        return []

    def _on_fit(self, fit: RunnerFit, now_ms: int) -> list[SessionOutput]:
        if self._kept is not None and fit.unfit != self._runner_unfit:
            self._kept.stream.beat_due = True
        self._runner_unfit = fit.unfit
        return self._write(now_ms)

    def _on_checked(self, checked: CardChecked) -> list[SessionOutput]:
        if self._kept is not None:
            # The heartbeat leaves first: it shows whether the fault is gone.
            self._kept.stream.beat_due = True
            self._kept.stream.checked.append(checked)
        return []

    def _on_woke(self, call: Call, now_ms: int) -> list[SessionOutput]:
        if now_ms < call.wake_at_ms:
            return []
        if call.state is CallState.WAITING:
            return [self._dial(call, now_ms)]
        if call.state in {CallState.DIALING, CallState.REGISTERING, CallState.SAVING}:
            return self._hang_up(call, "no answer", now_ms)
        if call.state is not CallState.OPEN:
            call.wake_at_ms = now_ms + ANSWER_MS
            return []
        return self._beat(call, now_ms)

    def _beat(self, call: Call, now_ms: int) -> list[SessionOutput]:
        stream = call.stream
        if dead := stream.why_dead(now_ms, has_others=call.has_others):
            return self._hang_up(call, dead, now_ms)
        outputs: list[SessionOutput] = []
        if call.has_others and now_ms >= stream.look_at_ms:
            stream.looked_ms = now_ms  # the stream stays until another scheduler sends a welcome
            outputs += [self._dial(each, now_ms) for each in self._idle()]
        if not stream.sampling and now_ms >= stream.next_beat_ms - SAMPLE_AHEAD_MS:
            stream.sampling = True
            outputs.append(TakeSamples())
        if now_ms >= stream.next_beat_ms:
            stream.beat_due = True
            stream.sampling = False
            stream.next_beat_ms = now_ms + stream.beat_ms
            outputs += self._write(now_ms)
        call.set_wake()
        return outputs

    def _write(self, now_ms: int) -> list[SessionOutput]:
        """One message at a time: reports that gather meanwhile leave together in the next one."""
        call = self._open_call
        if call is None or not call.stream.writable:
            return []
        message = self._next_message(call.stream, now_ms)
        if message is None:
            return []
        call.stream.writable = False
        return [Send(address=call.address, message=message)]

    def _next_message(self, stream: Stream, now_ms: int) -> pb.FromAgent | None:
        if stream.beat_due:
            stream.beat_due = False
            stream.beat_seq += 1
            stream.beats[stream.beat_seq] = now_ms
            beat = pb.Heartbeat(
                seq=stream.beat_seq,
                samples=[sample_message(sample) for sample in self._samples],
                unfit=self._runner_unfit or self._unfit,
            )
            return pb.FromAgent(heartbeat=beat)
        if (seen := stream.take_seen()) is not None:
            return pb.FromAgent(workers=workers_message(seen, now_ms))
        if (reports := stream.next_reports(now_ms)) is not None:
            return pb.FromAgent(reports=reports)
        if stream.gpus_changed:
            stream.gpus_changed = False
            return pb.FromAgent(inventory=pb.Inventory(gpus=[gpu_message(gpu) for gpu in self._gpus]))
        if stream.checked:
            return pb.FromAgent(checked=checked_message(stream.checked.pop(0)))
        return None
