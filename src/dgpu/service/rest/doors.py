"""Decides which connections stay open. Each belongs to a user of this machine or to an address, and each of those has a
share.

A new connection beyond the share of its user replaces that user's oldest idle connection, if that one has been idle for
two seconds: opening and closing thousands a second would cost more than refusing them. Beyond the total, the oldest
idle connection without any admitted request is closed; then, only for the owner, other idle ones. If no connection is
idle, the new one is refused. So another user can fill only its own share, and the owner always gets a connection.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import NamedTuple

from dgpu.service.open_files import MAX_HTTP_CONNECTIONS, AgentConnections, HttpLimits, http_limits

MIN_IDLE_SECONDS = 2.0  # before a connection is closed for one that is not the owner's

Key = tuple[str, int | str]  # ("uid", 1000) or ("address", "10.0.0.7")


class Rank(enum.IntEnum):
    """The order in which connections are closed."""

    STRANGER = 0  # has made no admitted request
    KNOWN = 1
    OWNER = 2


class Guest:
    """One connection."""

    __slots__ = ("close", "idle_since_s", "is_gone", "is_idle", "is_leaving", "key", "rank")

    def __init__(self, key: Key, rank: Rank, now_s: float) -> None:
        self.key = key
        self.rank = rank
        self.is_idle = True
        self.idle_since_s = now_s
        self.is_leaving = False  # told to close; no longer counted
        self.is_gone = False
        self.close: Callable[[], None] = _nothing

    def admitted(self) -> None:
        """A request of this connection passed the access check. Called while it is busy."""
        if self.rank is Rank.STRANGER:
            self.rank = Rank.KNOWN


def _nothing() -> None:
    pass


class Entry(NamedTuple):
    guest: Guest | None  # None: refused
    victim: Guest | None = None  # to be closed now


class _Share:
    __slots__ = ("count", "idle")

    def __init__(self) -> None:
        self.count = 0
        self.idle: dict[Guest, None] = {}  # the longest idle first


class Doors:
    def __init__(self, limits: HttpLimits | None = None, agents: AgentConnections | None = None) -> None:
        self.agents = AgentConnections() if agents is None else agents
        self.limits = limits or http_limits(MAX_HTTP_CONNECTIONS)
        self._shares: dict[Key, _Share] = {}
        self._idle: dict[Rank, dict[Guest, None]] = {rank: {} for rank in Rank}
        self._owners = 0
        self._others = 0
        self.refused = 0
        self.shed = 0
        self.unread = 0  # closed because their clients did not read
        self.accept_pauses = 0

    @property
    def count(self) -> int:
        return self._owners + self._others

    @property
    def idle_count(self) -> int:
        return sum(map(len, self._idle.values()))

    def enter(self, key: Key, now_s: float, *, is_owner: bool) -> Entry:
        share = self._shares.get(key) or _Share()
        victim = None
        if not is_owner and share.count >= self._share_of(key):
            victim = next(iter(share.idle), None)
        elif self.count >= self.limits.total or (not is_owner and self._others >= self.limits.others):
            victim = self._oldest_idle(Rank.OWNER if is_owner else Rank.STRANGER)
        else:
            return Entry(self._welcome(key, share, now_s, is_owner=is_owner))
        if victim is None or (not is_owner and now_s - victim.idle_since_s < MIN_IDLE_SECONDS):
            self.refused += 1
            return Entry(None)
        self.dismiss(victim)
        return Entry(self._welcome(key, self._shares.get(key) or _Share(), now_s, is_owner=is_owner), victim)

    def busy(self, guest: Guest) -> None:
        if guest.is_idle:
            guest.is_idle = False
            self._idle[guest.rank].pop(guest, None)
            share = self._shares.get(guest.key)
            if share is not None:
                share.idle.pop(guest, None)

    def idle(self, guest: Guest, now_s: float) -> None:
        if not guest.is_idle and not guest.is_leaving:
            guest.is_idle = True
            guest.idle_since_s = now_s
            self._idle[guest.rank][guest] = None
            self._shares[guest.key].idle[guest] = None

    def leave(self, guest: Guest) -> None:
        guest.is_gone = True
        if not guest.is_leaving:
            self._forget(guest)

    def dismiss(self, guest: Guest) -> None:
        """The connection is about to be closed: its place is free."""
        self.shed += 1
        self._forget(guest)

    def oldest_idle_others(self, count: int) -> list[Guest]:
        """For a process without free files: connections that can be closed to free one, except the owner's."""
        found = [*self._idle[Rank.STRANGER], *self._idle[Rank.KNOWN]][:count]
        for guest in found:
            self.dismiss(guest)
        return found

    def _share_of(self, key: Key) -> int:
        return self.limits.per_uid if key[0] == "uid" else self.limits.per_address

    def _oldest_idle(self, highest: Rank) -> Guest | None:
        for rank in Rank:
            if rank <= highest and self._idle[rank]:
                return next(iter(self._idle[rank]))
        return None

    def _welcome(self, key: Key, share: _Share, now_s: float, *, is_owner: bool) -> Guest:
        guest = Guest(key, Rank.OWNER if is_owner else Rank.STRANGER, now_s)
        self._shares[key] = share
        share.count += 1
        share.idle[guest] = None
        self._idle[guest.rank][guest] = None
        self._count(guest, 1)
        return guest

    def _forget(self, guest: Guest) -> None:
        self.busy(guest)
        guest.is_leaving = True
        self._count(guest, -1)
        share = self._shares[guest.key]
        share.count -= 1
        if not share.count:
            del self._shares[guest.key]

    def _count(self, guest: Guest, change: int) -> None:
        if guest.rank is Rank.OWNER:
            self._owners += change
        else:
            self._others += change
