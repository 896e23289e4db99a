"""The index behind reservations: when nodes come free, for the demands that reservations are made for, and what has to
be looked at anew. Derived, never journaled.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping
from heapq import heapify, heappop, heappush
from itertools import islice
from operator import itemgetter
from typing import TypeAlias

from dgpu.core.ids import LeaseId, NodeId
from dgpu.core.policy.fit import Demand
from dgpu.core.policy.lasting import Ends
from dgpu.core.policy.soonest import Opening
from dgpu.core.room import Room

_MOST_DEMANDS = 16
# In one go. What is not looked at yet is found later, and never believed wrongly.
_MOST_CAUGHT_UP = 256  # changes; of these, the rooms with something idle are looked at
_MOST_BEHIND = 8  # and so many others,
_MOST_BEHIND_AT_TIMES = 64  # or so many when all reservations are worked out anew
_FEWEST_MOVES = 4_096
_REST_MS = 1_000

Look: TypeAlias = Callable[[Room], Opening | None]
Found: TypeAlias = tuple[int, NodeId, Opening]  # when, and where
BY_TIME = itemgetter(0, 1)


class Soonest:
    """Nodes by when they have room for a demand. What stands here may be old: it is looked at again before it is
    believed.
    """

    __slots__ = ("behind", "heap", "seen", "times")

    def __init__(self, times: dict[NodeId, int], seen: int) -> None:
        self.times = times
        self.seen = seen  # how much of the list of changes is worked in
        self.behind: dict[NodeId, None] = {}  # changed, and not looked at yet
        self.heap = [(at, node_id) for node_id, at in times.items()]
        heapify(self.heap)

    def note(self, node_id: NodeId, found: Opening | None) -> None:
        if found is None:
            self.times.pop(node_id, None)
        elif self.times.get(node_id) != found.at:
            self.times[node_id] = found.at
            heappush(self.heap, (found.at, node_id))

    def catch_up(
        self, moved: list[Room], rooms: Mapping[NodeId, Room], look: Look, *, thorough: bool
    ) -> None:
        """A room that was filled up again is mostly free later than it was, which is found out when it comes up. One
        with something idle is not.
        """
        behind = self.behind
        until = min(len(moved), self.seen + _MOST_CAUGHT_UP)
        if until > self.seen:
            for room in dict.fromkeys(moved[self.seen : until]):
                if room.idle or room.kept:
                    behind.pop(room.node_id, None)
                    self.note(room.node_id, look(room))
                else:
                    behind[room.node_id] = None
            self.seen = until
        for node_id in list(islice(behind, _MOST_BEHIND_AT_TIMES if thorough else _MOST_BEHIND)):
            del behind[node_id]
            known = rooms.get(node_id)
            self.note(node_id, None if known is None else look(known))
        if len(self.heap) > 2 * len(self.times) + 64:
            self.heap = [(at, node_id) for node_id, at in self.times.items()]
            heapify(self.heap)

    def first(
        self, number: int, rooms: Mapping[NodeId, Room], look: Look, without: Container[NodeId]
    ) -> list[Found]:
        """The nodes that have room first, ties by id."""
        found: list[Found] = []
        aside: list[tuple[int, NodeId]] = []
        while self.heap and len(found) < number:
            at, node_id = heappop(self.heap)
            if self.times.get(node_id) != at:
                continue
            if node_id in without:
                aside.append((at, node_id))
                continue
            room = rooms.get(node_id)
            seen = None if room is None else look(room)
            if seen is not None and seen.at == at:
                if not any(known[1] == node_id for known in found):
                    found.append((at, node_id, seen))
                    aside.append((at, node_id))
            else:
                self.note(node_id, seen)
        for entry in aside:
            heappush(self.heap, entry)
        return found


class Bookings:
    __slots__ = (
        "_by_demand",
        "_moved",
        "_origin",
        "displaced",
        "due",
        "ends",
        "fruitless",
        "looked_at",
        "looks_left",
    )

    def __init__(self, origin: Bookings | None = None) -> None:
        self.due = False  # somebody may hold a reservation who does not, or should no longer
        self.displaced = False  # a grant took what was kept for another: at once
        self.looks_left = 0  # at waiting tasks in this pass: a bound on the work
        self.fruitless: tuple[int, int] | None = (
            None  # the last look for more: when, and the next task id then
        )
        self.looked_at = 0  # when all reservations were last worked out anew
        self.ends = Ends()
        self._moved: list[Room] = []
        self._by_demand: dict[Demand, Soonest] = {}
        self._origin = origin

    def copy(self) -> Bookings:
        twin = Bookings(self)
        twin.due, twin.displaced, twin.looked_at = self.due, self.displaced, self.looked_at
        twin.fruitless = self.fruitless
        return twin

    def rests(self, at: int, next_id: int) -> bool:
        """Nobody could hold what is left, and nobody came since. Limits change with every end of a task: to look each
        time would cost more than all else.
        """
        if self.fruitless is None:
            return False
        looked_at, known = self.fruitless
        return known == next_id and 0 <= at - looked_at < _REST_MS

    @property
    def moved(self) -> list[Room]:
        """Rooms that changed, for who tells of them."""
        return self._moved

    def soonest(self, demand: Demand, rooms: Mapping[NodeId, Room], look: Look, *, thorough: bool) -> Soonest:
        known = self._by_demand.get(demand)
        if known is None:
            if len(self._by_demand) >= _MOST_DEMANDS:
                del self._by_demand[next(iter(self._by_demand))]
            known = self._by_demand[demand] = self._new(demand, rooms.values(), look)
        known.catch_up(self._moved, rooms, look, thorough=thorough)
        return known

    def _new(self, demand: Demand, rooms: Iterable[Room], look: Look) -> Soonest:
        lent = None if self._origin is None else self._origin.lend(demand)
        if lent is not None:
            return lent
        seen = {room.node_id: look(room) for room in rooms}
        times = {node_id: found.at for node_id, found in seen.items() if found is not None}
        return Soonest(times, len(self._moved))

    def lend(self, demand: Demand) -> Soonest | None:
        """For a copy, in which all that moved in itself is still to be looked at."""
        known = self._by_demand.get(demand)
        if known is None:
            return None
        twin = Soonest(known.times.copy(), 0)
        twin.behind = known.behind.copy()
        return twin

    def is_long(self, nodes: int) -> bool:
        return len(self._moved) > max(_FEWEST_MOVES, 2 * nodes)

    def shorten(self) -> None:
        """How a room is now counts, not how often it changed."""
        first = min((each.seen for each in self._by_demand.values()), default=len(self._moved))
        self._moved[:] = list(dict.fromkeys(self._moved[first:]))
        for each in self._by_demand.values():
            each.seen = 0

    def keep_ends(self, leases: Collection[LeaseId]) -> None:
        """Those of leases that are over are forgotten now and then."""
        if len(self.ends.known) > 2 * len(leases) + 64:
            self.ends.shorten(leases)

    def forget(self) -> None:
        """Nobody asks any more."""
        self.ends = Ends()
        self._moved.clear()
        self._by_demand.clear()
