"""Wakes the machine for reads that wait longer than their patience."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from dgpu.service.loop.answers import Answers
from dgpu.service.machine.reads import PATIENCE_MS

_WAKE_S = (PATIENCE_MS + 10) / 1_000


class Patience:
    def __init__(self, loop: asyncio.AbstractEventLoop, answers: Answers, wake: Callable[[], None]) -> None:
        self._loop = loop
        self._answers = answers
        self._wake = wake
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        if self._timer is None and self._answers.has_reads:
            self._timer = self._loop.call_later(_WAKE_S, self._on_over)

    def _on_over(self) -> None:
        self._timer = None
        self._wake()
        self.begin()
