"""The index behind reservations: when nodes come free, for the demands that reservations are made for, and what has to
be looked at anew. Derived, never journaled.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from dgpu.core.index.room import Room
from dgpu.core.model.demand import Demand
from dgpu.core.model.ids import NodeId, ShapeId, TaskId
from dgpu.core.rules.durations import Ends

if TYPE_CHECKING:
    from dgpu.core.index.rooms import Rooms

_MAX_DEMANDS: Final = 16
_MIN_MOVES: Final = 4_096
_REST_MS: Final = 1_000


class Pace(NamedTuple):
    """How much is looked at in one go. The rest is found later, and nothing is believed unseen."""

    moves: int  # worked in
    idle: int  # rooms that have something idle
    looks: int  # for the first; then the best of these is good enough


IN_PASSING: Final = Pace(4, 4, 8)
THOROUGH: Final = Pace(128, 64, 128)

Look: TypeAlias = Callable[[Room], int | None]
Found: TypeAlias = tuple[int, NodeId]  # when, and where


class Held(NamedTuple):
    """A reservation, as all see it who ask whether it is in their way."""

    task_id: TaskId
    window_ms: int
    level: int
    turn: tuple[int, int, TaskId]  # in the order in which they are going to start


class Chances(NamedTuple):
    """Who may have what is kept for reservations, as far as it is the same for all."""

    at: int
    window_ms: int  # whoever takes longer delays all of them
    least_level: int
    own: dict[ShapeId, list[TaskId]]  # those that hold one
    held: list[Held]


class Soonest:
    """Nodes by when they have room for a demand. What stands here may be old: it is looked at again before it is
    believed.
    """

    __slots__ = ("heap", "seen", "times")

    def __init__(self, times: dict[NodeId, int], seen: int) -> None:
        self.times = times
        self.seen = seen  # how much of the list of changes is worked in
        self.heap = [(at, node_id) for node_id, at in times.items()]
        heapify(self.heap)

    def note(self, node_id: NodeId, at: int | None) -> None:
        if at is None:
            self.times.pop(node_id, None)
        elif self.times.get(node_id) != at:
            self.times[node_id] = at
            heappush(self.heap, (at, node_id))

    def catch_up(self, moved: list[Room], idle: Iterable[Room], look: Look, pace: Pace) -> None:
        """A room that was filled up again is mostly free later than it was, which is found out when it comes up. One
        with something idle is not.
        """
        until = min(len(moved), self.seen + pace.moves)
        for room in dict.fromkeys([*islice(idle, pace.idle), *moved[self.seen : until]]):
            self.note(room.node_id, look(room))
        self.seen = until
        if len(self.heap) > 2 * len(self.times) + 64:
            self.heap = [(at, node_id) for node_id, at in self.times.items()]
            heapify(self.heap)

    def first(
        self, number: int, rooms: Mapping[NodeId, Room], look: Look, without: Container[NodeId], pace: Pace
    ) -> list[Found]:
        """The nodes that have room first, ties by id. Where too many are no longer as they were, the first of those that
        were looked at.
        """
        found: dict[NodeId, int] = {}
        others: dict[NodeId, int] = {}
        aside: list[Found] = []
        looks = 0
        while self.heap and len(found) < number:
            if looks >= pace.looks and len({*found, *others}) >= number:
                break
            at, node_id = heappop(self.heap)
            if self.times.get(node_id) != at or node_id in found:
                continue
            if node_id in without:
                aside.append((at, node_id))
                continue
            room = rooms.get(node_id)
            seen = None if room is None else look(room)
            looks += 1
            if seen == at:
                found[node_id] = at
                aside.append((at, node_id))
            else:
                self.note(node_id, seen)
                if seen is not None:
                    others[node_id] = seen
        for entry in aside:
            heappush(self.heap, entry)
        best = sorted([(at, node_id) for node_id, at in (others | found).items()])
        return best[:number]


class Bookings:
    __slots__ = (
        "_by_demand",
        "_moved",
        "_origin",
        "admitted_until",
        "chances",
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
        self.admitted_until = TaskId(
            0
        )  # the next task id when it was last asked whether rules still allow them all
        self.looked_at = 0  # when all reservations were last worked out anew
        self.ends = Ends()
        self.chances: Chances | None = None  # as last asked for
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

    def soonest(self, demand: Demand, rooms: Rooms, look: Look, pace: Pace) -> Soonest:
        known = self._by_demand.get(demand)
        if known is None:
            if len(self._by_demand) >= _MAX_DEMANDS:
                del self._by_demand[next(iter(self._by_demand))]
            known = self._by_demand[demand] = self._new(demand, rooms.by_node.values(), look)
        known.catch_up(self._moved, rooms.with_idle(), look, pace)
        return known

    def _new(self, demand: Demand, rooms: Iterable[Room], look: Look) -> Soonest:
        lent = None if self._origin is None else self._origin.lend(demand)
        if lent is not None:
            return lent
        seen = {room.node_id: look(room) for room in rooms}
        times = {node_id: at for node_id, at in seen.items() if at is not None}
        return Soonest(times, len(self._moved))

    def lend(self, demand: Demand) -> Soonest | None:
        """For a copy, in which all that moved in itself is still to be looked at."""
        known = self._by_demand.get(demand)
        return None if known is None else Soonest(known.times.copy(), 0)

    def is_long(self, nodes: int) -> bool:
        return len(self._moved) > max(_MIN_MOVES, 2 * nodes)

    def shorten(self) -> None:
        """How a room is now counts, not how often it changed."""
        first = min((each.seen for each in self._by_demand.values()), default=len(self._moved))
        self._moved[:] = list(dict.fromkeys(self._moved[first:]))
        for each in self._by_demand.values():
            each.seen = 0

    def forget(self) -> None:
        """Nobody asks any more."""
        self.ends = Ends()
        self.chances = None
        self._moved.clear()
        self._by_demand.clear()
