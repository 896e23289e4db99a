"""Reads of the state. Each sees a committed state, and one that was the newest after the read was requested.

With an engine, a read waits for a confirmation of the leadership. While the engine does not answer, reads get the last
committed state, marked as stale.
"""

from __future__ import annotations

from typing import NamedTuple

from dgpu.service.machine.commit import CommitPipeline
from dgpu.service.machine.gate import Gate
from dgpu.service.machine.outputs import LoadCommitted, Output, ReadNow

PATIENCE_MS = 250


class _Waiting(NamedTuple):
    request_id: int
    cause: int
    at: int


class WaitingReads:
    def __init__(self, pipeline: CommitPipeline, gate: Gate) -> None:
        self._pipeline = pipeline
        self._gate = gate
        self._waiting: list[_Waiting] = []
        self._is_loading = False

    def add(self, request_id: int, now: int, *, is_stalled: bool) -> list[Output]:
        if not self._gate.is_gated:
            if self._pipeline.in_flight is None:
                return [ReadNow(request_id=request_id)]
            self._waiting.append(_Waiting(request_id, 0, now))
            return []
        if is_stalled and self._pipeline.is_readable:
            return [ReadNow(request_id=request_id, is_stale=True)]
        self._waiting.append(_Waiting(request_id, self._gate.cause(now), now))
        return self._gate.ask()

    def confirmed(self) -> list[Output]:
        """Reads that may see the state now."""
        if not self._waiting or self._pipeline.in_flight is not None:
            return []
        ready = [one for one in self._waiting if self._gate.is_confirmed(one.cause)]
        self._waiting = [one for one in self._waiting if not self._gate.is_confirmed(one.cause)]
        return [ReadNow(request_id=one.request_id) for one in ready]

    def overdue(self, now: int) -> list[Output]:
        """Reads that have waited long get the last committed state."""
        if not self._gate.is_gated or not self._waiting or now - self._waiting[0].at < PATIENCE_MS:
            return []
        if not self._pipeline.is_readable:
            if self._is_loading:
                return []
            self._is_loading = True
            return [LoadCommitted(index=self._pipeline.last_index)]
        stale = [one for one in self._waiting if now - one.at >= PATIENCE_MS]
        self._waiting = self._waiting[len(stale) :]
        return [ReadNow(request_id=one.request_id, is_stale=True) for one in stale]

    def loaded(self) -> None:
        self._is_loading = False

    def drop(self) -> list[Output]:
        """The group in flight was not stored: the state is again the committed one."""
        waiting, self._waiting = self._waiting, []
        return [ReadNow(request_id=one.request_id) for one in waiting]
