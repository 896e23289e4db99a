"""A lane: the crowds of one pool, those worth a try and those that were refused. Closed: its pool has nothing left."""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heapify, heappop, heappush, heapreplace
from typing import TYPE_CHECKING

from dgpu.core.giving import FEW_ROOMS
from dgpu.core.ids import NodeId, ShapeId
from dgpu.core.line import PART, SLACK, Crowd, CrowdKey, Line, Turn
from dgpu.core.policy.fit import fits
from dgpu.core.room import whole
from dgpu.core.task import Pool

if TYPE_CHECKING:
    from dgpu.core.room import Room
    from dgpu.core.rooms import Rooms

_MOST_WOKEN = (
    2 * FEW_ROOMS
)  # older ones are forgotten: who fitted there waits until all reservations are planned


class Order:
    """Crowds by their first turn: a heap, stale entries too. They are put right when they come up."""

    __slots__ = ("turns",)

    def __init__(self) -> None:
        self.turns: list[Turn] = []

    def first(self, lines: Mapping[ShapeId, Line]) -> Turn | None:
        """Of the first line in the first crowd, which knows itself by the very same turn."""
        turns = self.turns
        while turns:
            turn = turns[0]
            line = lines.get(turn[3])
            # A crowd that went to another order and back may be known there by the very same turn.
            if line is None or (crowd := line.crowd).listed_as is not turn or crowd.listed_in is not self:
                heappop(turns)
                continue
            first = crowd.first()
            if first is turn:
                return turn
            if first is None:
                crowd.unlist()
                heappop(turns)
            else:
                crowd.listed_as = first
                heapreplace(turns, first)
        return None

    def list_crowd(self, crowd: Crowd, crowds: Mapping[CrowdKey, Crowd]) -> None:
        """It is new here, or comes earlier now. `crowds`: all of the lane."""
        turn = crowd.first()
        if turn is None:
            crowd.unlist()
            return
        if crowd.listed_as is not None and crowd.listed_as <= turn:
            return
        crowd.listed_in, crowd.listed_as = self, turn
        heappush(self.turns, turn)
        if len(self.turns) > 2 * len(crowds) + SLACK:
            listed = (each.listed_as for each in crowds.values() if each.listed_in is self)
            self.turns = [each for each in listed if each is not None]
            heapify(self.turns)


class Refused:
    """Crowds of one size that fitted nowhere when they were last tried. Those in `order` were not yet tried with the
    rooms that have more to give since.
    """

    __slots__ = ("order", "tried")

    def __init__(self) -> None:
        self.order = Order()
        self.tried: dict[CrowdKey, Crowd] = {}


class Lane:
    """Tasks without GPUs have a lane of their own, which no quota closes.

    A room that has more to give lets in few of those who were refused, mostly one. So they are not all asked: they are
    tried in their order, until one fits or nothing is left in the room.
    """

    __slots__ = (
        "_most_leases",
        "closed",
        "crowds",
        "fitting",
        "gated",
        "improved",
        "limit_milli",
        "looked",
        "order",
        "other",
        "pool",
        "ready",
        "refused",
        "used_milli",
        "wakes",
        "whole_refused_at",
        "woken",
        "woken_most",
        "woken_part",
    )

    def __init__(self, pool: Pool | None) -> None:
        self.pool = pool
        self.other: Lane | None = None  # that of the other pool
        self.used_milli = 0  # held by leases
        self.limit_milli = 0  # the pool's quota, and what it holds on cards that do not count
        self.closed = False
        self.crowds: dict[CrowdKey, Crowd] = {}
        self.ready: dict[ShapeId, Line] = {}  # lines with a task that may be placed
        self.gated: dict[
            int, dict[CrowdKey, Crowd]
        ] = {}  # by what they lack of quota; 0: it depends on the card
        self.order = Order()  # crowds awake
        self.refused: dict[int, Refused] = {}  # by size, see Crowd
        self.improved: dict[NodeId, Room] = {}  # the only rooms that may let in those refused
        self.fitting: list[Room] = []  # those of them that let in the crowd found last, best liked first
        self.looked = True  # those refused are listed to be tried with the latest of them
        # Where reservations are made: the improved rooms as they were, with all that is kept in them. Who fits there is
        # tried though others were faster: it may have what is kept, or get a reservation before those behind it.
        self.woken: list[
            tuple[int, Room]
        ] = []  # numbered: who was refused since is not tried for an older one
        self.wakes = 0
        self._most_leases = 0
        self.whole_refused_at = (
            0  # nothing was idle then: nobody who needs a whole GPU is tried for an older one
        )
        self.woken_most, self.woken_part = 0, False

    @property
    def any_awake(self) -> bool:
        return not self.closed and bool(self.order.turns or self.improved or self.woken)

    def wake(self, crowd: Crowd) -> None:
        """It is worth a try, or may come earlier than its order knows."""
        if crowd.gated_at is not None:
            return
        order = crowd.listed_in
        if order is None:
            if crowd.blocked:
                return
            order = self.order
        order.list_crowd(crowd, self.crowds)

    # those that were refused

    def block(self, crowd: Crowd) -> None:
        crowd.listed_in = crowd.listed_as = None
        crowd.blocked = True
        crowd.refused_at = self.wakes
        refused = self.refused.get(crowd.size)
        if refused is None:
            refused = self.refused[crowd.size] = Refused()
        refused.tried[crowd.key] = crowd

    def unblock(self, crowd: Crowd) -> None:
        crowd.unlist()
        self.refused[crowd.size].tried.pop(crowd.key, None)
        self.wake(crowd)

    def unblock_all(self) -> None:
        self._forget_improved()
        for crowd in self.crowds.values():
            if crowd.blocked:
                self.unblock(crowd)

    def ask_all(self, rooms: Rooms) -> None:
        """Many rooms have more to give: each crowd that was refused is asked once, through the index."""
        most, part = self._look_over()
        if len(self.improved) <= FEW_ROOMS:
            return
        improved = [*self.improved.values()] if rooms.reserved else []
        woken = {crowd.key for crowd in self.crowds.values() if self._fits_woken(crowd)}
        self._forget_improved()
        self.looked = True
        for crowd in [crowd for crowd in self.crowds.values() if crowd.blocked]:
            if (part if crowd.size == PART else crowd.size <= most) and (
                rooms.best(crowd.demand) is not None
                or rooms.lets_in_but_for_kept(improved, crowd.demand)
                or crowd.key in woken
            ):
                self.unblock(crowd)

    def wake_planned(self, improved: Mapping[NodeId, Room], rooms: Rooms) -> None:
        """Where reservations are made: who fits in these rooms, but for what is kept there, is known from now on."""
        if len(self.improved) > FEW_ROOMS:
            self.ask_all(rooms)
        self._most_leases = rooms.most_leases
        for node_id, room in improved.items():
            if node_id in self.improved:
                seen = whole(room)
                self.wakes += 1
                self.woken.append((self.wakes, seen))
                self.woken_most = max(self.woken_most, len(seen.idle))
                self.woken_part = self.woken_part or bool(seen.idle) or seen.look_for_part()
        del self.woken[:-_MOST_WOKEN]

    def is_woken(self, crowd: Crowd) -> bool:
        """Of one that was refused: is it going to be tried again, for all that is known of reservations?"""
        if not self.is_pending(crowd):
            return False
        return self._fits_woken(crowd) if self.woken else bool(self.improved)

    def is_pending(self, crowd: Crowd) -> bool:
        """Of one that was refused: was it not yet asked since rooms have more to give?"""
        if not crowd.blocked or (self.looked and crowd.listed_in is None):
            return False
        return bool(self.improved or self.woken)

    def wakes_whole(self) -> bool:
        return any(crowd.size > 0 and self.is_woken(crowd) for crowd in self.crowds.values())

    def refuse_whole(self) -> None:
        """Nothing is idle: who needs a whole GPU is refused again, untried."""
        for crowd in self.crowds.values():
            if crowd.beside and crowd.size > 0 and self.is_woken(crowd):
                crowd.beside = False
        self.whole_refused_at = self.wakes

    def _fits_woken(self, crowd: Crowd) -> bool:
        since = crowd.refused_at if crowd.size <= 0 else max(crowd.refused_at, self.whole_refused_at)
        if since < self.wakes:
            for number, room in reversed(self.woken):
                if number <= since:
                    break
                if fits(room, crowd.demand, self._most_leases):
                    return True
        return False

    def _forget_improved(self) -> None:
        self.improved.clear()
        if self.woken:
            self.woken.clear()
            self.woken_most, self.woken_part = 0, False

    def _look_over(self) -> tuple[int, bool]:
        """How many whole GPUs can be had in one of the improved rooms at most, and can a part of one? Rooms with
        nothing left are forgotten.
        """
        most, part = 0, False
        empty: list[NodeId] | None = None
        for node_id, room in self.improved.items():
            idle = len(room.idle)
            if room.kept:
                idle += len(room.kept)
            if idle:
                part = True
                if idle > most:  # noqa: PLR1730 - for every decision, and max() is a call
                    most = idle
            elif room.has_part or (room.used and room.holds):
                part = True
            elif self.pool is not None:
                empty = [node_id] if empty is None else [*empty, node_id]
        if empty is not None:
            for node_id in empty:
                del self.improved[node_id]
        return most, part

    def first_let_in(
        self, lines: Mapping[ShapeId, Line], rooms: Rooms, best: Turn | None, last_reserved: Turn | None
    ) -> Turn | None:
        """The first of those refused that one of the improved rooms has room for, or that is worth a try for the sake
        of reservations, if it comes before `best`.
        """
        improved = self.improved
        most, part = self._look_over()
        if self.woken:
            part = part or self.woken_part
            most = max(most, self.woken_most if rooms.idle_milli else 0)
        found = best
        for size, refused in self.refused.items():
            if not (part if size == PART else size <= most):
                continue
            order = refused.order
            if refused.tried and not self.looked:
                for tried in refused.tried.values():
                    order.list_crowd(tried, self.crowds)
                refused.tried.clear()
            while (turn := order.first(lines)) is not None:
                if found is not None and turn >= found:
                    break
                crowd = lines[turn[3]].crowd
                if fitting := rooms.fitting_of(improved.values(), crowd.demand):
                    found, self.fitting = turn, fitting
                    break
                if self.woken and self._is_worth_a_try(crowd, turn, rooms, last_reserved):
                    found, self.fitting = turn, []
                    break
                if crowd.beside and crowd.milli > rooms.idle_milli and crowd.size > 0:
                    crowd.beside = not self._fits_woken(crowd)
                self.block(crowd)
        self.looked = True
        if found is None:
            self._forget_improved()
        return None if found is best else found

    def _is_worth_a_try(self, crowd: Crowd, turn: Turn, rooms: Rooms, last_reserved: Turn | None) -> bool:
        """Nothing is left for it where more was to be had. Yet it may have what is kept for others, or what a
        reservation gave up since, or it stands so far in front as to get a reservation.
        """
        wants = last_reserved is None or turn < last_reserved
        asks = bool(rooms.reserved) and crowd.refused_kept < rooms.kept_ms
        if not wants and not asks and not rooms.any_fits(rooms.improved.values(), crowd.demand):
            return False
        return self._fits_woken(crowd)

    def take_whole(self, lines: Mapping[ShapeId, Line]) -> list[Crowd]:
        """The crowds awake that need whole GPUs; those that take a part of one stay."""
        taken, parts = [], []
        for turn in self.order.turns:
            line = lines.get(turn[3])
            if line is None or line.crowd.listed_as is not turn or line.crowd.listed_in is not self.order:
                continue
            if line.crowd.takes_part_of_a_card:
                parts.append(turn)
            else:
                taken.append(line.crowd)
        heapify(parts)
        self.order.turns = parts
        return taken

    def start_over(self) -> None:
        """The order of all lines changed."""
        self.order.turns = []
        for refused in self.refused.values():
            refused.order.turns = []
        for crowd in self.crowds.values():
            crowd.relist()
            crowd.listed_as = None  # but it stays in its order
            self.wake(crowd)

    # quota

    def gate(self, crowd: Crowd, lacks_milli: int) -> None:
        """Its pool has not enough left for it."""
        crowd.unlist()
        crowd.gated_at = lacks_milli
        self.gated.setdefault(lacks_milli, {})[crowd.key] = crowd

    def ungate(self, free_milli: int) -> None:
        """So much is left: whoever lacked no more is worth a try again."""
        for lacks_milli in [each for each in self.gated if each <= free_milli]:
            for crowd in self.gated.pop(lacks_milli).values():
                crowd.gated_at = None
                self.wake(crowd)

    def forget(self, crowd: Crowd) -> None:
        del self.crowds[crowd.key]
        if crowd.blocked:
            self.refused[crowd.size].tried.pop(crowd.key, None)
        if crowd.gated_at is not None:
            self.gated[crowd.gated_at].pop(crowd.key, None)
