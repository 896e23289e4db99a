"""Decides when something that the master has is safe: output of an ended run, which its node may then delete, or
content that a submit names. A machine without I/O.

    the master has it ──► every standby in contact has it ──► released: two copies or more
                     └──► no standby was in contact for two minutes ──► released: one copy only

A standby that was in contact within these two minutes before it takes over therefore has all output that nodes have
deleted since it last compared everything.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Generic, NamedTuple, TypeVar

K = TypeVar("K", bound=Hashable)  # names one copy, such as a lease

LONE_AFTER_S = 120.0
MAX_WAITING = 100_000  # runs; beyond it nodes are released with one copy


class Waiting(NamedTuple):
    link_id: int
    held_by: set[str]  # names of standbys


class Freed(NamedTuple, Generic[K]):
    """It is safe. The node at this stream, if there is one, may delete its copy."""

    key: K
    link_id: int


class Release(Generic[K]):
    def __init__(self, began_s: float, lone_after_s: float = LONE_AFTER_S) -> None:
        self._began_s = began_s
        self._lone_after_s = lone_after_s
        self._heard_s: dict[str, float] = {}  # by name of the standby
        self._waiting: dict[K, Waiting] = {}
        self.one_copy = 0  # runs that were released with one copy since a standby last had everything

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def is_waiting(self, key: K) -> bool:
        return key in self._waiting

    def standbys(self) -> list[str]:
        """In contact now, or a moment ago."""
        return sorted(self._heard_s)

    def on_durable(self, key: K, link_id: int, now_s: float) -> bool:
        """The master has all of it. True: it need not wait for a copy."""
        if self.is_alone(now_s) or len(self._waiting) >= MAX_WAITING:
            self.one_copy += 1
            return True
        self._waiting[key] = Waiting(link_id, set())
        return False

    def on_heard(
        self, name: str, held: Iterable[K], now_s: float, *, is_whole: bool = False
    ) -> list[Freed[K]]:
        self._heard_s[name] = now_s
        if is_whole:
            self.one_copy = 0
        freed = []
        for key in held:
            waiting = self._waiting.get(key)
            if waiting is not None:
                waiting.held_by.add(name)
                if self._heard_s.keys() <= waiting.held_by:
                    del self._waiting[key]
                    freed.append(Freed(key, waiting.link_id))
        return freed

    def on_refused(self, refused: Iterable[K]) -> list[Freed[K]]:
        """A standby cannot take these, for example because its disk is full."""
        freed = []
        for key in refused:
            if (waiting := self._waiting.pop(key, None)) is not None:
                self.one_copy += 1
                freed.append(Freed(key, waiting.link_id))
        return freed

    def on_time(self, now_s: float) -> list[Freed[K]]:
        """Standbys that were silent for too long no longer count."""
        silent = [name for name, heard_s in self._heard_s.items() if now_s - heard_s >= self._lone_after_s]
        for name in silent:
            del self._heard_s[name]
        is_alone = self.is_alone(now_s)
        if not (silent or is_alone):
            return []
        freed = []
        for key, waiting in list(self._waiting.items()):
            if is_alone or (waiting.held_by and self._heard_s.keys() <= waiting.held_by):
                del self._waiting[key]
                freed.append(Freed(key, waiting.link_id))
                self.one_copy += not waiting.held_by
        return freed

    def is_alone(self, now_s: float) -> bool:
        return not self._heard_s and now_s - self._began_s >= self._lone_after_s
