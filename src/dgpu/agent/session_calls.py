"""The calls of a session: one for each address of a scheduler, at most one of them welcomed. No I/O."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence

from dgpu.agent.lifecycle_words import Acked, FinishedRun, Report
from dgpu.agent.session_words import (
    CardChecked,
    Heard,
    Note,
    SessionOutput,
    SessionSettings,
    reports_message,
    servers_of,
)
from dgpu.agent.workers.calls import CallProgress, ReturnedCall, WorkersSeen, WorkerState, fitting
from dgpu.core.model.ids import LeaseId
from dgpu.wire.proto import agent_pb2 as pb

DEFAULT_SILENCE_MS = 15_000
SAMPLE_AHEAD_MS = 500
LEAST_BEAT_MS = 50
MAX_REPORTS = 1_000  # per message
MAX_UNACKED = 100  # messages with reports, not acknowledged yet
NEVER_MS = 2**62
LEAST_PAUSE = 0.1  # of the first pause after a lost stream
LOOK_ELSEWHERE_MS = 2_000  # after an answer to a heartbeat is due, and between two looks
MAX_RETRY_OF_SEVERAL_MS = 5_000  # as long as the lease of a master that died


class CallState(enum.Enum):
    IDLE = enum.auto()  # not begun, or another call is welcomed
    WAITING = enum.auto()
    DIALING = enum.auto()
    REGISTERING = enum.auto()
    SAVING = enum.auto()  # got a welcome with a new epoch that is not on disk yet
    OPEN = enum.auto()
    HANGING_UP = enum.auto()


class Call:
    def __init__(self, address: str, *, has_others: bool) -> None:
        self.address = address
        self.has_others = has_others
        self.state = CallState.IDLE
        self.failures = 0  # since the last welcome
        self.wake_at_ms = NEVER_MS
        self.session_id = ""
        self.stream = Stream()

    def rest(self) -> None:
        """Another call is welcomed. When that one ends, this one begins without a pause."""
        self.state, self.failures, self.wake_at_ms = CallState.IDLE, 0, NEVER_MS
        self.stream = Stream()

    def pause(self, now_ms: int, pause_ms: int) -> None:
        self.state, self.wake_at_ms = CallState.WAITING, now_ms + pause_ms
        self.stream = Stream()

    def set_wake(self) -> None:
        stream = self.stream
        sample_ms = NEVER_MS if stream.sampling else stream.next_beat_ms - SAMPLE_AHEAD_MS
        self.wake_at_ms = min(stream.next_beat_ms, sample_ms, stream.last_word_ms + stream.silence_ms)
        if self.has_others:
            self.wake_at_ms = min(self.wake_at_ms, stream.look_at_ms)

    @property
    def server(self) -> str:
        return servers_of(self.stream.rest_urls, self.address)


def calls_to(addresses: Sequence[str]) -> dict[str, Call]:
    return {address: Call(address, has_others=len(addresses) > 1) for address in addresses}


class Stream:
    """The state of one stream: it has its own sequence numbers, and a new stream repeats all reports."""

    def __init__(self) -> None:
        self.welcome: pb.Welcome | None = None
        self.rest_urls: tuple[str, ...] = ()  # of this scheduler first, then of those that may lead next
        self.was_open = False
        self.held_back: list[pb.FromScheduler] = []
        self.writable = False
        self.registered_ms = 0
        self.heard_ms = 0
        self.last_word_ms = 0
        self.looked_ms = 0  # for another scheduler, because this one is silent
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
        self.returned: list[ReturnedCall] = []
        self.states: dict[LeaseId, WorkerState] = {}  # to be sent: the newest of each worker
        self.progress: dict[LeaseId, CallProgress] = {}
        self.gpus_changed = False
        self.checked: list[CardChecked] = []  # requested again with the next welcome

    @property
    def look_at_ms(self) -> int:
        """A master answers each heartbeat, also while it can store nothing. One that does not may be replaced."""
        return max(self.last_word_ms + self.beat_ms, self.looked_ms) + LOOK_ELSEWHERE_MS

    def why_dead(self, now_ms: int, *, has_others: bool) -> str:
        """Why an open stream must end; empty: it need not."""
        if now_ms - self.last_word_ms >= self.silence_ms:
            return f"nothing heard for {self.silence_ms} ms"
        unconfirmed_ms = 2 * self.silence_ms
        if has_others and now_ms - self.heard_ms >= unconfirmed_ms:
            # A master that lost the engine still sends messages, but confirms nothing.
            return f"no heartbeat confirmed for {unconfirmed_ms} ms; another scheduler may lead"
        return ""

    def heard(self, at_ms: int) -> list[SessionOutput]:
        self.heard_ms = max(self.heard_ms, at_ms)
        if self.welcome is None:
            return []
        lease_ms, action = self.welcome.task_lease_ms, self.welcome.lease_action or "never"
        return [Heard(at_ms=self.heard_ms, lease_ms=lease_ms, action=action)]

    def on_welcome(self, welcome: pb.Welcome) -> None:
        self.welcome = welcome
        self.rest_urls = (welcome.rest_url, *welcome.other_rest_urls)

    def on_heartbeat_ack(self, ack: pb.HeartbeatAck) -> list[SessionOutput]:
        sent_ms = self.beats.get(ack.seq)
        if sent_ms is None:
            return []
        self.rest_urls = (*self.rest_urls[:1], *ack.other_rest_urls)
        self.beats = {number: at_ms for number, at_ms in self.beats.items() if number > ack.seq}
        return self.heard(sent_ms)

    def on_reports_ack(self, seq: int) -> list[SessionOutput]:
        started: list[LeaseId] = []
        finished: list[LeaseId] = []
        returned: list[LeaseId] = []
        for number in [number for number in self.unacked if number <= seq]:
            report = self.unacked.pop(number)
            started.extend(lease_id for lease_id, _ in report.started)
            finished.extend(run.end.lease_id for run in report.finished)
            returned.extend(call.lease_id for call in report.returned)
        if not (started or finished or returned):
            return []
        return [Acked(started=tuple(started), finished=tuple(finished), returned=tuple(returned))]

    def next_reports(self, now_ms: int) -> pb.Reports | None:
        if not (self.started or self.finished or self.returned) or len(self.unacked) >= MAX_UNACKED:
            return None
        calls = fitting(self.returned, MAX_REPORTS)
        # Calls before the end of their worker, which would end them too.
        ends = MAX_REPORTS if calls == len(self.returned) else 0
        report = Report(
            started=tuple(self.started[:MAX_REPORTS]),
            finished=tuple(self.finished[:ends]),
            returned=tuple(self.returned[:calls]),
        )
        del self.started[:MAX_REPORTS], self.finished[:ends], self.returned[:calls]
        self.report_seq += 1
        self.unacked[self.report_seq] = report
        return reports_message(self.report_seq, report, now_ms)

    def take_seen(self) -> WorkersSeen | None:
        if not (self.states or self.progress):
            return None
        seen = WorkersSeen(states=tuple(self.states.values()), progress=tuple(self.progress.values()))
        self.states, self.progress = {}, {}
        return seen


class Pauses:
    """Between two calls to a scheduler."""

    def __init__(self, settings: SessionSettings, jitter: Callable[[], float]) -> None:
        self._settings = settings
        self._jitter = jitter

    def soon_ms(self) -> int:
        """Every node lost the master at the same time: they return one after the other, within one interval."""
        return int(self._settings.retry_ms * (LEAST_PAUSE + (1 - LEAST_PAUSE) * self._jitter()))

    def next_ms(self, call: Call) -> int:
        max_ms = self._settings.max_retry_ms
        if len(self._settings.addresses) > 1:
            # Only the master listens: the refusals before a takeover must not make the node miss it for long.
            max_ms = min(max_ms, MAX_RETRY_OF_SEVERAL_MS)
        pause_ms = min(self._settings.retry_ms * 2 ** min(call.failures, 16), max_ms)
        call.failures += 1
        return int(pause_ms * (0.5 + 0.5 * self._jitter()))


def shorter_beat(stream: Stream, wanted_ms: int) -> Note:
    detail = (
        f"every {stream.beat_ms} ms instead of {wanted_ms}: the scheduler considers a node offline "
        f"after a silence of {stream.silence_ms} ms"
    )
    return Note(event="heartbeat_shortened", detail=detail)


def beat_ms(wanted_ms: int, silence_ms: int) -> int:
    """Two heartbeats may be lost or late before the scheduler considers the node offline."""
    return min(wanted_ms, max(silence_ms // 3, LEAST_BEAT_MS))
