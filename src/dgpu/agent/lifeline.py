"""Tells the guard when the keeper has to enforce the next task lease, so that the guard can replace a hung keeper.

Standard library only. The value is in memory that the keeper and its guard share, so the guard can read it while the
keeper is stopped or waits for a dead disk.
"""

from __future__ import annotations

import mmap

LOOK_SECONDS = 0.25
_LATE_MS = 500
_MAX_LOOKS = (
    6  # late checks in a row: checks count, not time, because the guard may have been stopped with its keeper
)


class Lifeline:
    """Created before the fork. 0: no running task has a lease that ends."""

    def __init__(self) -> None:
        self._memory = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("q")

    def set(self, enforce_by_ms: int) -> None:
        self._memory[0] = enforce_by_ms

    @property
    def enforce_by_ms(self) -> int:
        return self._memory[0]


class LeaseGuard:
    """Decides when the keeper has failed to enforce a lease. Without I/O."""

    def __init__(self) -> None:
        self._late_looks = 0

    def look(self, enforce_by_ms: int, now_ms: int) -> bool:
        """Whether the guard must end the keeper's tasks now."""
        is_late = bool(enforce_by_ms) and now_ms >= enforce_by_ms + _LATE_MS
        self._late_looks = self._late_looks + 1 if is_late else 0
        return self._late_looks >= _MAX_LOOKS
