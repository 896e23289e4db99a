"""A node's conversation with the scheduler. A machine without I/O.

One stream at a time: dial, register, get a welcome, then heartbeats and reports until the stream ends; then again,
after a pause that doubles. The node obeys only orders of its own cluster, under the highest epoch it has ever seen.
Both are on disk before the first order is obeyed.
"""

from __future__ import annotations

import enum
from collections.abc import Callable

from dgpu.agent.epoch import Joined
from dgpu.agent.lifecycle_words import Acked, FinishedRun, Ordered, Report, Welcomed, Woke
from dgpu.agent.probe.probe import Sample
from dgpu.agent.run.runner import RunnerFit
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
    Heard,
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
    reports_message,
    run_order,
    sample_message,
)
from dgpu.core.model.ids import GpuId, LeaseId
from dgpu.wire.proto import agent_pb2 as pb

ANSWER_MS = 10_000  # time for a scheduler to accept the call and to send a welcome
DEFAULT_SILENCE_MS = 15_000
SAMPLE_AHEAD_MS = 500
LEAST_BEAT_MS = 50
MAX_REPORTS = 1_000  # per message
MAX_UNACKED = 100  # messages with reports, not acknowledged yet
NEVER_MS = 2**62


class _State(enum.Enum):
    IDLE = enum.auto()
    WAITING = enum.auto()
    DIALING = enum.auto()
    REGISTERING = enum.auto()
    SAVING = enum.auto()  # got a welcome with a new epoch that is not on disk yet
    OPEN = enum.auto()
    HANGING_UP = enum.auto()


def _beat_ms(wanted_ms: int, silence_ms: int) -> int:
    """Two heartbeats may be lost or late before the scheduler considers the node offline."""
    return min(wanted_ms, max(silence_ms // 3, LEAST_BEAT_MS))


class _Stream:
    """The state of one stream: it has its own sequence numbers, and a new stream repeats all reports."""

    def __init__(self) -> None:
        self.welcome: pb.Welcome | None = None
        self.held_back: list[pb.FromScheduler] = []
        self.writable = False
        self.registered_ms = 0
        self.heard_ms = 0
        self.last_word_ms = 0
        self.silence_ms = DEFAULT_SILENCE_MS
        self.beat_ms = NEVER_MS
        self.next_beat_ms = NEVER_MS
        self.beat_due = False
        self.beat_seq = 0
        self.beats: dict[int, int] = {}  # time of sending, until acknowledged
        self.sampling = False
        self.report_seq = 0
        self.unacked: dict[int, Report] = {}
        self.started: list[tuple[LeaseId, int]] = []
        self.finished: list[FinishedRun] = []
        self.gpus_changed = False
        self.checked: list[CardChecked] = []  # requested again with the next welcome


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
        self._jitter = jitter
        self._new_session_id = new_session_id
        self._state = _State.IDLE
        self._turn = 0  # of the addresses
        self._failures = 0
        self._gpus: tuple[NodeGpu, ...] = ()
        self._samples: tuple[Sample, ...] = ()
        self._unfit = ""
        self._runner_unfit = ""
        self._stream = _Stream()
        self._said_beat_ms = 0
        self.joined = joined
        self.session_id = ""
        self.wake_at_ms = NEVER_MS

    @property
    def open(self) -> bool:
        return self._state is _State.OPEN

    def on_input(self, value: SessionInput, now_ms: int) -> list[SessionOutput]:
        match value:
            case Report():
                return self._on_report(value)
            case Received():
                return self._on_received(value.message, now_ms)
            case Written():
                self._stream.writable = True
                return self._write(now_ms)
            case Flush():
                return self._write(now_ms)
            case Woke():
                return self._on_woke(now_ms)
            case Sampled():
                self._samples, self._unfit = value.samples, value.unfit
                return []
            case GpusFound():
                return self._on_gpus(value)
            case RunnerFit():
                self._stream.beat_due = self._stream.beat_due or value.unfit != self._runner_unfit
                self._runner_unfit = value.unfit
                return self._write(now_ms)
            case CardChecked():
                # The heartbeat leaves first: it shows whether the fault is gone.
                self._stream.beat_due = True
                self._stream.checked.append(value)
                return []
            case Connected():
                return self._register(value, now_ms)
            case Disconnected():
                return self._on_disconnected(value, now_ms)
            case EpochSaved():
                return self._on_saved(value, now_ms)
            case Begin():
                return self._dial(now_ms) if self._state is _State.IDLE else []

    # -- getting there

    @property
    def _address(self) -> str:
        return self._settings.addresses[self._turn % len(self._settings.addresses)]

    def _dial(self, now_ms: int) -> list[SessionOutput]:
        self._state = _State.DIALING
        self.wake_at_ms = now_ms + ANSWER_MS
        return [Dial(address=self._address)]

    def _register(self, connected: Connected, now_ms: int) -> list[SessionOutput]:
        if self._state is not _State.DIALING:
            return []
        self._stream = _Stream()
        self._state = _State.REGISTERING
        self._stream.registered_ms = now_ms
        self.session_id = self._new_session_id()
        self.wake_at_ms = now_ms + ANSWER_MS
        register = register_message(
            self.identity,
            joined=self.joined,
            session_id=self.session_id,
            gpus=self._gpus,
            held=connected.held,
        )
        self._stream.gpus_changed = False
        return [Send(message=pb.FromAgent(register=register))]

    def _on_disconnected(self, value: Disconnected, now_ms: int) -> list[SessionOutput]:
        if self._state in {_State.IDLE, _State.WAITING}:
            return []
        if self._state is not _State.OPEN:
            self._turn += (
                1  # one quick retry for a scheduler that restarts, none for one that refuses or is silent
            )
        self._stream = _Stream()
        # With two addresses both are tried before the pause grows.
        rounds = min(self._failures // len(self._settings.addresses), 16)
        self._failures += 1
        pause_ms = min(self._settings.retry_ms * 2**rounds, self._settings.max_retry_ms)
        pause_ms = int(pause_ms * (0.5 + 0.5 * self._jitter()))
        self._state = _State.WAITING
        self.wake_at_ms = now_ms + pause_ms
        return [Note(event="scheduler_unreachable", detail=f"{value.reason}; next try in {pause_ms} ms")]

    def _hang_up(self, reason: str, now_ms: int) -> list[SessionOutput]:
        self._state = _State.HANGING_UP
        self.wake_at_ms = now_ms + ANSWER_MS
        return [HangUp(reason=reason)]

    # -- what the scheduler says

    def _on_received(self, message: pb.FromScheduler, now_ms: int) -> list[SessionOutput]:
        self._stream.last_word_ms = now_ms
        kind = message.WhichOneof("body")
        if self._state is _State.SAVING:
            self._stream.held_back.append(message)
            return []
        if self._state is _State.REGISTERING:
            if kind == "welcome":
                return self._on_welcome(message.welcome, now_ms)
            reason = message.refused.reason if kind == "refused" else f"answered a registration by {kind}"
            return [Note(event="registration_refused", detail=reason), *self._hang_up(reason, now_ms)]
        if self._state is not _State.OPEN:
            return []
        if kind == "orders":
            return self._on_orders(message.orders, now_ms)
        if kind == "reports_ack":
            return self._on_reports_ack(message.reports_ack.seq, now_ms)
        if kind == "heartbeat_ack":
            return self._on_heartbeat_ack(message.heartbeat_ack.seq, now_ms)
        if kind == "refused":
            return self._hang_up(message.refused.reason, now_ms)
        return []

    def _on_welcome(self, welcome: pb.Welcome, now_ms: int) -> list[SessionOutput]:
        joined = Joined(cluster_id=welcome.cluster_id, epoch=welcome.epoch, nonce=welcome.nonce)
        if reason := self.joined.refuses(joined):
            return [Note(event="scheduler_refused", detail=reason), *self._hang_up(reason, now_ms)]
        self._stream.welcome = welcome
        if joined != self.joined:
            self._state = _State.SAVING
            return [SaveEpoch(joined=joined)]
        return self._enter(welcome, now_ms)

    def _on_saved(self, saved: EpochSaved, now_ms: int) -> list[SessionOutput]:
        self.joined = saved.joined
        if self._state is not _State.SAVING or self._stream.welcome is None:
            return []
        outputs = self._enter(self._stream.welcome, now_ms)
        waiting, self._stream.held_back = self._stream.held_back, []
        for message in waiting:
            outputs += self._on_received(message, now_ms)
        return outputs

    def _enter(self, welcome: pb.Welcome, now_ms: int) -> list[SessionOutput]:
        self._state = _State.OPEN
        self._failures = 0
        self._stream.last_word_ms = now_ms
        self._stream.silence_ms = welcome.heartbeat_timeout_ms or DEFAULT_SILENCE_MS
        self._stream.beat_ms = _beat_ms(self._settings.heartbeat_ms, self._stream.silence_ms)
        self._stream.next_beat_ms = now_ms + self._stream.beat_ms
        self._stream.beat_due = bool(self._runner_unfit)  # reported before the scheduler sends many orders
        outputs: list[SessionOutput] = [
            *self._say_beat(),
            Note(event="registered", detail=f"{self._address}, epoch {welcome.epoch}"),
            *self._heard(self._stream.registered_ms),
            Opened(address=self._address, session_id=self.session_id),
            Welcomed(
                keep=frozenset(LeaseId(lease_id) for lease_id in welcome.keep), cluster_id=welcome.cluster_id
            ),
        ]
        if not self._samples:
            outputs.append(TakeSamples())
        self._set_wake()
        return outputs + self._write(now_ms)

    def _say_beat(self) -> list[SessionOutput]:
        """Once, and again if the scheduler's timeout changes."""
        beat_ms, wanted_ms = self._stream.beat_ms, self._settings.heartbeat_ms
        if beat_ms in {wanted_ms, self._said_beat_ms}:
            return []
        self._said_beat_ms = beat_ms
        detail = (
            f"every {beat_ms} ms instead of {wanted_ms}: the scheduler considers a node offline "
            f"after a silence of {self._stream.silence_ms} ms"
        )
        return [Note(event="heartbeat_shortened", detail=detail)]

    def _on_orders(self, orders: pb.Orders, now_ms: int) -> list[SessionOutput]:
        welcome = self._stream.welcome
        lease_ms = welcome.task_lease_ms if welcome is not None and welcome.lease_action != "never" else 0
        if lease_ms and now_ms - self._stream.heard_ms >= lease_ms:
            # Read too late: other nodes may hold these leases. A new registration shows the valid ones.
            return self._hang_up("orders arrived after the task lease was over", now_ms)
        starts = tuple(run_order(start, self.joined.cluster_id) for start in orders.starts)
        stops = tuple((LeaseId(stop.lease_id), stop.reason) for stop in orders.stops)
        checks = [CheckCard(gpu_id=GpuId(check.uuid), number=check.number) for check in orders.checks]
        acked = self._on_reports_ack(orders.reports_ack, now_ms) if orders.reports_ack else []
        return [*acked, Ordered(starts=starts, stops=stops), *checks]

    def _on_reports_ack(self, seq: int, now_ms: int) -> list[SessionOutput]:
        started: list[LeaseId] = []
        finished: list[LeaseId] = []
        for number in [number for number in self._stream.unacked if number <= seq]:
            report = self._stream.unacked.pop(number)
            started.extend(lease_id for lease_id, _ in report.started)
            finished.extend(run.end.lease_id for run in report.finished)
        outputs: list[SessionOutput] = []
        if started or finished:
            outputs.append(Acked(started=tuple(started), finished=tuple(finished)))
        return outputs + self._write(now_ms)

    def _on_heartbeat_ack(self, seq: int, now_ms: int) -> list[SessionOutput]:
        sent_ms = self._stream.beats.get(seq)
        if sent_ms is None:
            return []
        self._stream.beats = {number: at_ms for number, at_ms in self._stream.beats.items() if number > seq}
        outputs = self._heard(sent_ms)
        self._stream.last_word_ms = now_ms
        self._set_wake()
        return outputs

    def _heard(self, at_ms: int) -> list[SessionOutput]:
        self._stream.heard_ms = max(self._stream.heard_ms, at_ms)
        if self._stream.welcome is None:
            return []
        lease_ms, action = self._stream.welcome.task_lease_ms, self._stream.welcome.lease_action or "never"
        return [Heard(at_ms=self._stream.heard_ms, lease_ms=lease_ms, action=action)]

    # -- what the node says

    def _on_report(self, report: Report) -> list[SessionOutput]:
        if self._state is not _State.OPEN:
            return []  # the lifecycle repeats everything after the next welcome
        self._stream.started.extend(report.started)
        self._stream.finished.extend(report.finished)
        return []

    def _on_gpus(self, found: GpusFound) -> list[SessionOutput]:
        if found.gpus == self._gpus:
            return []
        self._gpus = found.gpus
        self._samples = ()  # older than the list, and perhaps different about a fault
        self._stream.gpus_changed = True
        return []

    def _on_woke(self, now_ms: int) -> list[SessionOutput]:
        if now_ms < self.wake_at_ms:
            return []
        if self._state is _State.WAITING:
            return self._dial(now_ms)
        if self._state in {_State.DIALING, _State.REGISTERING, _State.SAVING}:
            return self._hang_up("no answer", now_ms)
        if self._state is not _State.OPEN:
            self.wake_at_ms = now_ms + ANSWER_MS
            return []
        if now_ms - self._stream.last_word_ms >= self._stream.silence_ms:
            return self._hang_up(f"nothing heard for {self._stream.silence_ms} ms", now_ms)
        outputs: list[SessionOutput] = []
        if not self._stream.sampling and now_ms >= self._stream.next_beat_ms - SAMPLE_AHEAD_MS:
            self._stream.sampling = True
            outputs.append(TakeSamples())
        if now_ms >= self._stream.next_beat_ms:
            self._stream.beat_due = True
            self._stream.sampling = False
            self._stream.next_beat_ms = now_ms + self._stream.beat_ms
            outputs += self._write(now_ms)
        self._set_wake()
        return outputs

    def _write(self, now_ms: int) -> list[SessionOutput]:
        """One message at a time: reports that gather meanwhile leave together in the next one."""
        if self._state is not _State.OPEN or not self._stream.writable:
            return []
        message = self._next_message(now_ms)
        if message is None:
            return []
        self._stream.writable = False
        return [Send(message=message)]

    def _next_message(self, now_ms: int) -> pb.FromAgent | None:
        if self._stream.beat_due:
            self._stream.beat_due = False
            self._stream.beat_seq += 1
            self._stream.beats[self._stream.beat_seq] = now_ms
            beat = pb.Heartbeat(
                seq=self._stream.beat_seq,
                samples=[sample_message(sample) for sample in self._samples],
                unfit=self._runner_unfit or self._unfit,
            )
            return pb.FromAgent(heartbeat=beat)
        has_reports = self._stream.started or self._stream.finished
        if has_reports and len(self._stream.unacked) < MAX_UNACKED:
            report = Report(
                started=tuple(self._stream.started[:MAX_REPORTS]),
                finished=tuple(self._stream.finished[:MAX_REPORTS]),
            )
            del self._stream.started[:MAX_REPORTS], self._stream.finished[:MAX_REPORTS]
            self._stream.report_seq += 1
            self._stream.unacked[self._stream.report_seq] = report
            return pb.FromAgent(reports=reports_message(self._stream.report_seq, report, now_ms))
        if self._stream.gpus_changed:
            self._stream.gpus_changed = False
            return pb.FromAgent(inventory=pb.Inventory(gpus=[gpu_message(gpu) for gpu in self._gpus]))
        if self._stream.checked:
            return pb.FromAgent(checked=checked_message(self._stream.checked.pop(0)))
        return None

    # -- leaves

    def _set_wake(self) -> None:
        sample_ms = NEVER_MS if self._stream.sampling else self._stream.next_beat_ms - SAMPLE_AHEAD_MS
        self.wake_at_ms = min(
            self._stream.next_beat_ms, sample_ms, self._stream.last_word_ms + self._stream.silence_ms
        )
