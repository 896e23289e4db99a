"""The commands that wait to be decided. Tenants take turns, so a flood from one tenant delays only itself.

A lane holds the commands for one tenant, in order. A tenant that is alone fills whole groups. A command waits for the
group in flight, so groups are short while a calm tenant is active: one that has hardly any command waiting when a group
begins. Tenants that all have a crowd waiting would gain nothing from short groups, so theirs are longer. Commands of
agents and of the scheduler itself have every second place: reports free GPUs, and must not wait behind submits.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from dgpu.core.commands import Command

MAX_QUEUED = 10_000
MAX_QUEUED_BYTES = 64 << 20
CALM_SHARE = 2  # commands of one lane in a group, while one of the active lanes has fewer than that waiting
CROWD_SHARE = 8  # the same, while all active lanes have more waiting
LARGE_BYTES = (
    16 << 10
)  # about sixty tasks. A larger command gets a group of its own while several lanes are active
ACTIVE_MS = 1_000  # how long a lane counts as active after its last command


class Entry(NamedTuple):
    origin: object  # an int: a request whose client waits and can retry
    command: Command | None
    size_bytes: int
    lane: str = ""  # a tenant; empty: operators

    @property
    def is_request(self) -> bool:
        return isinstance(self.origin, int)


class _Lane:
    __slots__ = ("entries", "size_bytes")

    def __init__(self) -> None:
        self.entries: deque[Entry] = deque()
        self.size_bytes = 0


class CommitQueue:
    def __init__(self) -> None:
        self._own: deque[Entry] = deque()  # of agents and the scheduler
        self._lanes: dict[str, _Lane] = {}  # lanes with commands; the first one has the next turn
        self._resting: dict[str, _Lane] = {}  # lanes that wait for the next group
        self._share = sys.maxsize  # of one lane in this group
        self._taken: dict[str, int] = {}  # in this group
        self._active_until: dict[str, int] = {}  # by lane, the longest inactive first
        self._own_turn = True
        self._count = 0
        self._size_bytes = 0

    def __len__(self) -> int:
        return self._count

    def has_room_for(self, size_bytes: int) -> bool:
        return self._count < MAX_QUEUED and self._size_bytes + size_bytes <= MAX_QUEUED_BYTES

    def lane_has_room_for(self, lane: str, size_bytes: int) -> bool:
        """A lane may take as much as it leaves free: one lane half of the queue, two lanes a third each, and so on.
        So another tenant always finds room.
        """
        held = self._lanes.get(lane) or self._resting.get(lane) or _Lane()
        return (
            len(held.entries) < MAX_QUEUED - self._count
            and held.size_bytes + size_bytes <= MAX_QUEUED_BYTES - self._size_bytes
        )

    def put(self, entry: Entry) -> None:
        self._count += 1
        self._size_bytes += entry.size_bytes
        if not entry.is_request:
            self._own.append(entry)
            return
        lane = self._resting.get(entry.lane) or self._lanes.setdefault(entry.lane, _Lane())
        lane.entries.append(entry)
        lane.size_bytes += entry.size_bytes

    def put_back(self, entries: Iterable[Entry]) -> None:
        """Commands of agents and of the scheduler that were not stored. They come before all others of theirs."""
        for entry in reversed(list(entries)):
            self._own.appendleft(entry)
            self._count += 1
            self._size_bytes += entry.size_bytes

    def begin_group(self, now: int) -> None:
        self._lanes = self._resting | self._lanes
        self._resting = {}
        self._taken.clear()
        for name in self._lanes:
            self._active_until.pop(name, None)
            self._active_until[name] = now + ACTIVE_MS
        while self._active_until and next(iter(self._active_until.values())) <= now:
            del self._active_until[next(iter(self._active_until))]
        self._share = self._share_of_each()

    def first(self) -> Entry | None:
        if self._own and (self._own_turn or not self._lanes):
            return self._own[0]
        for lane in self._lanes.values():
            return lane.entries[0]
        return None

    def take(self) -> Entry:
        """Removes `first`. The turn passes to the next lane."""
        if self._own and (self._own_turn or not self._lanes):
            entry = self._own.popleft()
            self._own_turn = False
        else:
            entry = self._take_from(next(iter(self._lanes)))
            self._own_turn = True
        self._count -= 1
        self._size_bytes -= entry.size_bytes
        return entry

    def _take_from(self, name: str) -> Entry:
        lane = self._lanes.pop(name)
        entry = lane.entries.popleft()
        lane.size_bytes -= entry.size_bytes
        taken = self._taken[name] = self._taken.get(name, 0) + 1
        if lane.entries:
            self._lanes[name] = lane  # at the end
            if taken >= self._share:
                self._rest(name)
        if len(self._active_until) > 1:
            if entry.size_bytes > LARGE_BYTES:
                self._rest(*self._lanes)
            self._put_off_large()
        return entry

    def _rest(self, *names: str) -> None:
        """Until the next group, in which these lanes come first."""
        for name in names:
            self._resting[name] = self._lanes.pop(name)

    def _put_off_large(self) -> None:
        """A large command does not join a group: its decision is long, and the others would be answered after it.

        This happens before any lane has its share, so the command is the first one of the next group.
        """
        while self._lanes:
            name, lane = next(iter(self._lanes.items()))
            if lane.entries[0].size_bytes <= LARGE_BYTES:
                return
            self._rest(name)

    def _share_of_each(self) -> int:
        if len(self._active_until) <= 1:
            return sys.maxsize
        crowds = sum(len(lane.entries) >= CALM_SHARE for lane in self._lanes.values())
        return CALM_SHARE if crowds < len(self._active_until) else CROWD_SHARE

    @property
    def awaits_calm(self) -> bool:
        """A calm lane had its last command in the group before, and only crowds wait. The client of that lane gets its
        answer now, and may send the next command at once.
        """
        waiting = {**self._resting, **self._lanes}
        return (
            bool(waiting)
            and not self._own
            and any(name not in waiting for name in self._taken)
            and all(len(lane.entries) >= CALM_SHARE for lane in waiting.values())
        )

    def drop_requests(self) -> list[int]:
        """The origins of all requests. Their clients can retry."""
        lanes = [*self._resting.values(), *self._lanes.values()]
        dropped = [entry.origin for lane in lanes for entry in lane.entries]
        self._lanes, self._resting = {}, {}
        self._count = len(self._own)
        self._size_bytes = sum(entry.size_bytes for entry in self._own)
        return [origin for origin in dropped if isinstance(origin, int)]
