"""Messages for the agent: starts, freezes and ends. Standard library only."""

from __future__ import annotations

from collections.abc import Iterable

from dgpu.agent.door import Door
from dgpu.agent.frames import Frame
from dgpu.agent.held import Held
from dgpu.agent.store import Record

_STARTS_WAIT_MS = 10  # so that the start and the end of a short task share a message


class News:
    """For the connected agent. A later agent gets the full state in the greeting."""

    def __init__(self, door: Door, known: dict[int, Record]) -> None:
        self._door = door
        self._known = known
        self._started: list[list[int]] = []
        self._pids: list[list[int]] = []  # of their first processes
        self._started_due_ms = 0
        self._frozen: list[int] = []
        self._inner: list[list[int]] = []  # the first processes of containers, with their starts
        self._ended: dict[int, None] = {}  # in order, each once

    def started(self, held: Held, now_ms: int) -> None:
        if not self._started:
            self._started_due_ms = now_ms + _STARTS_WAIT_MS
        self._started.append([held.lease, held.started_ms])
        self._pids.append([held.lease, held.pid])

    def contained(self, held: Held) -> None:
        if held.container is not None and held.container.root is not None:
            self._inner.append([held.lease, *held.container.root])

    def frozen(self, leases: Iterable[int]) -> None:
        self._frozen += leases

    def ended(self, leases: Iterable[int]) -> None:
        self._ended.update(dict.fromkeys(leases))

    def drop(self) -> None:
        self._started.clear()
        self._pids.clear()
        self._frozen.clear()
        self._inner.clear()
        self._ended.clear()

    @property
    def due_ms(self) -> int | None:
        """When starts must be sent. Other messages leave in their own round and need no timer."""
        return self._started_due_ms if self._started and self._door.has_room else None

    def tell(self, now_ms: int) -> None:
        if not (self._started or self._ended or self._frozen or self._inner):
            return
        if not self._door.connected:
            self.drop()
            return
        if not self._door.has_room:
            return
        if not (self._ended or self._frozen or self._inner) and now_ms < self._started_due_ms:
            return
        self._door.send(self._frame())

    def _frame(self) -> Frame:
        frame: Frame = {}
        if self._started:
            frame["started"], self._started = self._started, []
            frame["pids"], self._pids = self._pids, []
        if self._frozen:
            frame["frozen"], self._frozen = self._frozen, []
        if self._inner:
            frame["inner"], self._inner = self._inner, []
        if self._ended:
            known = self._known
            frame["ended"] = [
                {"lease": lease, **known[lease]["end"]}
                for lease in self._ended
                if "end" in known.get(lease, {})
            ]
            self._ended = {}
        return frame
