"""One timer of the loop, at the earliest time that was asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from dgpu.service.loop.clock import Clock


class Alarm:
    """`ring` gets the time for which the alarm was set."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock, ring: Callable[[int], None]) -> None:
        self._loop = loop
        self._clock = clock
        self._ring = ring
        self._timer: asyncio.TimerHandle | None = None
        self._at = 0

    def set(self, at: int) -> None:
        if self._timer is not None:
            if self._at <= at:
                return
            self._timer.cancel()
        self._at = at
        self._timer = self._loop.call_later(max(0, at - self._clock.now_ms()) / 1_000, self._on_time)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _on_time(self) -> None:
        self._timer = None
        self._ring(self._at)
