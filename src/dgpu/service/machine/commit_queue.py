"""The commands that wait to be decided. Tenants take turns, so a flood from one tenant delays only itself.

A lane holds the commands for one tenant, in order. A tenant that is alone fills whole groups. With several tenants, a
group takes a few commands of each: a command waits for the group in flight, so short groups keep the wait of a calm
tenant short. Commands of agents and of the scheduler itself have every second place: reports free GPUs, and must not
wait behind submits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from dgpu.core.commands import Command

MAX_QUEUED = 10_000
MAX_QUEUED_BYTES = 64 << 20
MAX_SHARED = 8  # commands of one lane in a group, while several lanes are active
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
        self._resting: dict[str, _Lane] = {}  # lanes that had their share of this group
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
            name = next(iter(self._lanes))
            lane = self._lanes.pop(name)
            entry = lane.entries.popleft()
            lane.size_bytes -= entry.size_bytes
            if lane.entries:
                (self._resting if self._has_share(name) else self._lanes)[name] = lane
            self._own_turn = True
        self._count -= 1
        self._size_bytes -= entry.size_bytes
        return entry

    def _has_share(self, name: str) -> bool:
        """Whether the lane has now had its share of this group."""
        taken = self._taken[name] = self._taken.get(name, 0) + 1
        return taken >= MAX_SHARED and len(self._active_until) > 1

    def drop_requests(self) -> list[int]:
        """The origins of all requests. Their clients can retry."""
        lanes = [*self._resting.values(), *self._lanes.values()]
        dropped = [entry.origin for lane in lanes for entry in lane.entries]
        self._lanes, self._resting = {}, {}
        self._count = len(self._own)
        self._size_bytes = sum(entry.size_bytes for entry in self._own)
        return [origin for origin in dropped if isinstance(origin, int)]
