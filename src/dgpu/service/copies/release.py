"""Decides when a node may delete the output of an ended run. A machine without I/O.

    the master has it ──► every standby in contact has it ──► released: two copies or more
                     └──► no standby was in contact for two minutes ──► released: one copy only

A standby that was in contact within these two minutes before it takes over therefore has all output that nodes have
deleted since it last compared everything.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from dgpu.core.model.ids import LeaseId

LONE_AFTER_S = 120.0
MAX_WAITING = 100_000  # runs; beyond it nodes are released with one copy


class Waiting(NamedTuple):
    link_id: int
    held_by: set[str]  # names of standbys


class Freed(NamedTuple):
    """The node at this stream may delete its copy of the run."""

    lease_id: LeaseId
    link_id: int


class Release:
    def __init__(self, began_s: float) -> None:
        self._began_s = began_s
        self._heard_s: dict[str, float] = {}  # by name of the standby
        self._waiting: dict[LeaseId, Waiting] = {}
        self.one_copy = 0  # runs that were released with one copy since a standby last had everything

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def standbys(self) -> list[str]:
        """In contact now, or a moment ago."""
        return sorted(self._heard_s)

    def on_durable(self, lease_id: LeaseId, link_id: int, now_s: float) -> bool:
        """The master has the whole run. True: its node may delete it at once."""
        if self.is_alone(now_s) or len(self._waiting) >= MAX_WAITING:
            self.one_copy += 1
            return True
        self._waiting[lease_id] = Waiting(link_id, set())
        return False

    def on_heard(
        self, name: str, held: Iterable[LeaseId], now_s: float, *, is_whole: bool = False
    ) -> list[Freed]:
        self._heard_s[name] = now_s
        if is_whole:
            self.one_copy = 0
        freed = []
        for lease_id in held:
            waiting = self._waiting.get(lease_id)
            if waiting is not None:
                waiting.held_by.add(name)
                if self._heard_s.keys() <= waiting.held_by:
                    del self._waiting[lease_id]
                    freed.append(Freed(lease_id, waiting.link_id))
        return freed

    def on_time(self, now_s: float) -> list[Freed]:
        """Standbys that were silent for too long no longer count."""
        silent = [name for name, heard_s in self._heard_s.items() if now_s - heard_s >= LONE_AFTER_S]
        for name in silent:
            del self._heard_s[name]
        is_alone = self.is_alone(now_s)
        if not (silent or is_alone):
            return []
        freed = []
        for lease_id, waiting in list(self._waiting.items()):
            if is_alone or (waiting.held_by and self._heard_s.keys() <= waiting.held_by):
                del self._waiting[lease_id]
                freed.append(Freed(lease_id, waiting.link_id))
                self.one_copy += not waiting.held_by
        return freed

    def is_alone(self, now_s: float) -> bool:
        return not self._heard_s and now_s - self._began_s >= LONE_AFTER_S
