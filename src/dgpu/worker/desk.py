"""The calls of a worker: waiting, running, done and not yet taken. No I/O; the clock is given."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Literal

import msgspec

from dgpu.worker.context import RunningCall
from dgpu.worker.frames import (
    Call,
    Cancel,
    Done,
    FrameError,
    HeldCall,
    Leave,
    Output,
    Progress,
    Started,
    Taken,
    ToAgent,
    ToWorker,
)

MAX_CALLS: Final = 1_024
# A call that ends sooner is reported by its `done` alone: two frames would cost as much as a short function.
SHORT_SECONDS: Final = 0.02
PROGRESS_SECONDS: Final = 0.5

_DROPPED: Final = ("cancelled before it began", "taken back before it began")


class Desk:
    """`wake` is called when there is progress to send that the thread at the socket does not know of."""

    def __init__(
        self, *, send: Callable[[ToAgent], None], wake: Callable[[], None], clock: Callable[[], float]
    ) -> None:
        self.leaving = False
        self._send = send
        self._wake = wake
        self._clock = clock
        self._queued: deque[Call] = deque()
        self._done: dict[int, tuple[HeldCall, Done]] = {}
        self._running: RunningCall | None = None
        self._begun_at = 0.0
        self._deadline: float | None = None
        self._started_sent = False
        self._progress_at = -PROGRESS_SECONDS
        self._output_bytes = 0

    @property
    def untaken(self) -> int:
        return len(self._done)

    @property
    def waiting(self) -> int:
        return len(self._queued)

    def receive(self, frame: ToWorker) -> None:
        match frame:
            case Call():
                self._add(frame)
            case Cancel(lease=lease, queued=queued):
                self._cancel(lease, queued=queued)
            case Taken(leases=leases):
                for lease in leases:
                    self._done.pop(lease, None)
            case Leave():
                self.leave()

    def leave(self) -> None:
        """Calls that have not begun are dropped: the agent gives them to another worker."""
        self.leaving = True
        self._queued.clear()
        if self._running is not None and not self._running.stop:
            self._running.stop = "cancelled"

    def begin(self) -> tuple[Call, RunningCall] | None:
        if self.leaving or not self._queued:
            return None
        call = self._queued.popleft()
        self._begun_at = self._clock()
        self._deadline = self._begun_at + call.timeout_ms / 1000 if call.timeout_ms else None
        self._started_sent = False
        self._progress_at = -PROGRESS_SECONDS
        self._output_bytes = 0
        self._running = RunningCall(call, self._on_progress)
        return call, self._running

    def finish(self, done: Done) -> None:
        running, self._running = self._running, None
        if self._output_bytes:
            done = msgspec.structs.replace(done, output_bytes=self._output_bytes)
        if running is not None:
            self._keep(running.call, done)

    def printed(self, stream: int, data: bytes) -> bool:
        """False if no call runs: the worker itself printed it."""
        if self._running is None:
            return False
        self._output_bytes += len(data)
        self._send(Output(lease=self._running.call.lease, stream=stream, data=data))
        return True

    def tick(self) -> None:
        """Whatever time alone brings: a late `started`, the end of a call's time, progress held back."""
        running = self._running
        if running is None:
            return
        now = self._clock()
        if not self._started_sent and now - self._begun_at >= SHORT_SECONDS:
            self._started_sent = True
            self._send(Started(lease=running.call.lease))
        if self._deadline is not None and now >= self._deadline and not running.stop:
            running.stop = "timeout"
        if running.newest is not None and now - self._progress_at >= PROGRESS_SECONDS:
            self._send_progress(running, now)

    def seconds_to_next_tick(self) -> float | None:
        running = self._running
        if running is None:
            return None
        due = [] if self._started_sent else [self._begun_at + SHORT_SECONDS]
        if self._deadline is not None and not running.stop:
            due.append(self._deadline)
        if running.newest is not None:
            due.append(self._progress_at + PROGRESS_SECONDS)
        return max(0.0, min(due) - self._clock()) if due else None

    def held(self) -> tuple[HeldCall, ...]:
        running = [_held(self._running.call, "running")] if self._running is not None else []
        return (
            *(held for held, _ in self._done.values()),
            *running,
            *(_held(call, "queued") for call in self._queued),
        )

    def resend(self) -> None:
        """A new agent has connected: it gets all that was not taken, and that a call runs."""
        for _, done in self._done.values():
            self._send(done)
        self._started_sent = False

    def _add(self, call: Call) -> None:
        if self.leaving or self._knows(call.lease):
            return
        if len(self._queued) >= MAX_CALLS:
            raise FrameError(f"more than {MAX_CALLS} calls wait in one worker")
        self._queued.append(call)

    def _knows(self, lease: int) -> bool:
        running = self._running
        if lease in self._done or (running is not None and running.call.lease == lease):
            return True
        return any(call.lease == lease for call in self._queued)

    def _cancel(self, lease: int, *, queued: bool) -> None:
        running = self._running
        if running is not None and running.call.lease == lease:
            if not queued:
                running.stop = running.stop or "cancelled"
            return
        for call in self._queued:
            if call.lease == lease:
                self._queued.remove(call)
                self._keep(call, Done(lease=lease, outcome="cancelled", error=_DROPPED[queued]))
                return

    def _keep(self, call: Call, done: Done) -> None:
        self._done[call.lease] = (_held(call, "done"), done)
        self._send(done)

    def _on_progress(self) -> None:
        """In the function's thread. The other thread may take the value at the same time; then there is none here."""
        running = self._running
        if running is not None and self._clock() - self._progress_at >= PROGRESS_SECONDS:
            self._send_progress(running, self._clock())
        self._wake()

    def _send_progress(self, running: RunningCall, now: float) -> None:
        newest, running.newest = running.newest, None
        if newest is not None:
            self._progress_at = now
            self._send(Progress(lease=running.call.lease, permille=newest[0], text=newest[1]))


def _held(call: Call, state: Literal["queued", "running", "done"]) -> HeldCall:
    return HeldCall(
        lease=call.lease,
        state=state,
        task_id=call.task_id,
        attempt=call.attempt,
        nonce=call.nonce,
        cluster=call.cluster,
    )
