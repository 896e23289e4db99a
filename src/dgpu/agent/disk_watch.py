"""Whether the node's own disk is full or does not answer. A thread checks: a dead disk must not stop the agent."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from dgpu.agent.disk_room import DiskRoom

_LOOK_MS = 1_000
_PATIENCE_MS = 10_000


class DiskWatch:
    """One for all nodes of an agent. Answers at once from the last check. `also`: another reason, or nothing."""

    def __init__(self, directories: Iterable[str], name: str, also: Callable[[], str] = str) -> None:
        self._also = also
        self._room = DiskRoom(directories)
        self._name = name
        self._is_full = False
        self._looking: threading.Thread | None = None
        self._asked_ms = -_LOOK_MS

    def unfit(self, now_ms: int) -> str:
        """Why no task should start here; empty: no problem."""
        looking = self._looking is not None and self._looking.is_alive()
        if looking and now_ms - self._asked_ms >= _PATIENCE_MS:
            return f"the disk of {self._name} does not answer"
        if not looking and now_ms - self._asked_ms >= _LOOK_MS:
            self._asked_ms = now_ms
            # A daemon thread: a hanging check must not keep the agent from ending.
            self._looking = threading.Thread(target=self._look, name="disk-watch", daemon=True)
            self._looking.start()
        return f"the disk of {self._name} is full" if self._is_full else self._also()

    def _look(self) -> None:
        self._is_full = self._room.is_full()
