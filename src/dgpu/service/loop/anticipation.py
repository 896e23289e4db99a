"""Holds a group back for a moment, because the next command of a calm tenant is probably on its way.

A client that submits one task after the other sends the next command right after its answer. If a group of a flood
began at that moment, the command would wait for the whole group, then for its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

MAX_SECONDS = 0.001  # uvloop counts in milliseconds; a client on the same machine answers in a fifth of that


class Anticipation:
    """`decide` is called when the time is over."""

    def __init__(self, loop: asyncio.AbstractEventLoop, decide: Callable[[], None]) -> None:
        self._loop = loop
        self._decide = decide
        self._timer: asyncio.TimerHandle | None = None
        self._is_over = False

    def holds(self, *, is_wanted: bool) -> bool:
        """Whether the group still waits. It waits once: until it is no longer wanted, or until the time is over."""
        if not is_wanted or self._is_over:
            self.end()
            return False
        if self._timer is None:
            self._timer = self._loop.call_later(MAX_SECONDS, self._on_over)
        return True

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._is_over = None, False

    def _on_over(self) -> None:
        self._is_over = True
        self._decide()
