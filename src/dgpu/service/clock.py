"""Time for commands: the wall clock at the start plus a monotonic count, so that it never jumps.

A wall clock that was set back between two runs would let time stand still until it catches up: no back-off would end.
So it starts no earlier than what the journal holds.
"""

from __future__ import annotations

import time


class Clock:
    """Somebody who sets the wall clock while we run changes nothing: no timeout, no back-off, no order."""

    def __init__(self, at_least_ms: int = 0) -> None:
        self._started_ns = max(time.time_ns(), at_least_ms * 1_000_000) - time.monotonic_ns()

    def now_ms(self) -> int:
        return (self._started_ns + time.monotonic_ns()) // 1_000_000
