"""A lane: the crowds of one pool, those worth a try and those that were refused. Closed: its pool has nothing left."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from heapq import heapify
from typing import TYPE_CHECKING, Final

from dgpu.core.index.giving import FEW_ROOMS
from dgpu.core.index.line import PART, Crowd, CrowdKey, Line, Turn
from dgpu.core.index.turns import Order, Refused
from dgpu.core.model.ids import NodeId, ShapeId
from dgpu.core.model.task import Pool
from dgpu.core.rules.fit import fits

if TYPE_CHECKING:
    from dgpu.core.index.room import Room
    from dgpu.core.index.rooms import Rooms

UNBOUNDED: Final = 1 << 62  # more than any cluster has
_MAX_WOKEN: Final = 2 * FEW_ROOMS  # older ones are forgotten: who fitted there waits until all are planned


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
        "improved",
        "left_milli",
        "limit_milli",
        "looked",
        "order",
        "other",
        "pool",
        "ready",
        "refused",
        "short",
        "turned_away",
        "used_milli",
        "wakes",
        "whole_refused_at",
        "woken",
        "woken_for",
    )

    def __init__(self, pool: Pool | None) -> None:
        self.pool = pool
        self.other: Lane | None = None  # that of the other pool
        self.used_milli = 0  # held by leases
        self.limit_milli = 0  # the pool's quota, and what it holds on cards that do not count
        self.left_milli = UNBOUNDED  # of the quota, for the next grant; known once somebody asked for more
        self.closed = False
        self.crowds: dict[CrowdKey, Crowd] = {}
        self.ready: dict[ShapeId, Line] = {}  # lines with a task that may be placed
        self.order = Order()  # crowds awake
        # Crowds that once claimed more than was left, by what they claim: awake while so much is left again. They stay
        # here: where pools are full, what is left goes up and down with every end and every grant.
        self.short: dict[int, Order] = {}
        self.turned_away: dict[
            CrowdKey, Crowd
        ] = {}  # what they claim depends on the card: for the next grant
        self.refused: dict[int, Refused] = {}  # by size, see Crowd
        self.improved: dict[NodeId, Room] = {}  # the only rooms that may let in those refused
        self.fitting: list[Room] = []  # those of them that let in the crowd found last, best liked first
        self.looked = True  # those refused are listed to be tried with the latest of them
        # Where reservations are made: the improved rooms as they were, with all that is kept in them. Who fits there is
        # tried though others were faster: it may have what is kept, or get a reservation before those behind it.
        # Numbered: who was refused since is not tried for an older one.
        self.woken: deque[tuple[int, Room]] = deque(maxlen=_MAX_WOKEN)
        self.wakes = 0
        self._most_leases = 0
        self.whole_refused_at = 0  # nothing was idle then: who needs a whole GPU is tried for no older one
        # By size: the latest of them with so many GPUs; the last is for PART. Larger demands are not asked for it.
        self.woken_for: list[int] = [0, 0]

    @property
    def any_awake(self) -> bool:
        return not self.closed and bool(
            any(order.turns for order in self._orders()) or self.improved or self.woken
        )

    def wake(self, crowd: Crowd) -> None:
        """It is worth a try, or may come earlier than its order knows."""
        if crowd.turned_away:
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
        most, part = self._look_over(with_kept=True)
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

    def wake_planned(self, seen: Mapping[NodeId, Room], rooms: Rooms) -> None:
        """Where reservations are made: who fits in rooms as they are now, but for what is kept there, is known from now
        on. `seen`: such rooms, for nobody to change.
        """
        if len(self.improved) > FEW_ROOMS:
            self.ask_all(rooms)
        self._most_leases = rooms.most_leases
        for node_id, room in seen.items():
            if node_id in self.improved:
                self.wakes = number = self.wakes + 1
                self.woken.append((number, room))
                idle, latest = len(room.idle), self.woken_for
                if len(latest) < idle + 2:
                    latest[-1:-1] = [0] * (idle + 2 - len(latest))
                for size in range(idle + 1):
                    latest[size] = number
                if idle or room.parts:
                    latest[PART] = number

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
        return self._latest(1) > self.whole_refused_at and any(
            crowd.size > 0 and self.is_woken(crowd) for crowd in self.crowds.values()
        )

    def refuse_whole(self) -> None:
        """Nothing is idle: who needs a whole GPU is refused again, untried."""
        for crowd in self.crowds.values():
            if crowd.beside and crowd.size > 0 and self.is_woken(crowd):
                crowd.beside = False
        self.whole_refused_at = self.wakes

    def _fits_woken(self, crowd: Crowd) -> bool:
        since = crowd.refused_at if crowd.size <= 0 else max(crowd.refused_at, self.whole_refused_at)
        if since < self._latest(crowd.size):
            for number, room in reversed(self.woken):
                if number <= since:
                    break
                if fits(room, crowd.demand, self._most_leases):
                    return True
        return False

    def _latest(self, size: int) -> int:
        """The last wake that had enough GPUs for a demand of this size, if its room is still known; else 0."""
        latest = self.woken_for
        number = latest[size] if size < len(latest) - 1 else 0
        return number if number > self.wakes - len(self.woken) else 0

    def _forget_improved(self) -> None:
        self.improved.clear()
        self.woken.clear()

    def _look_over(self, *, with_kept: bool) -> tuple[int, bool]:
        """How many whole GPUs can be had in one of the improved rooms at most, and can a part of one? Rooms with
        nothing left are forgotten.
        """
        most, part = 0, False
        empty: list[NodeId] | None = None
        for node_id, room in self.improved.items():
            idle = len(room.idle)
            if with_kept and room.kept:
                idle += len(room.kept)
            if idle:
                part = True
                if idle > most:  # noqa: PLR1730 - for every decision, and max() is a call
                    most = idle
            elif room.parts or (with_kept and room.used and room.holds):
                part = True
            elif self.pool is not None:
                empty = [node_id] if empty is None else [*empty, node_id]
        if empty is not None:
            for node_id in empty:
                del self.improved[node_id]
        return most, part

    def first_awake(self, lines: Mapping[ShapeId, Line], rooms: Rooms) -> Turn | None:
        best: Turn | None = None
        while (turn := self.order.first(lines)) is not None:
            if not self._runs_short(lines[turn[3]].crowd, rooms):
                best = turn
                break
        for milli, order in self.short.items():
            if milli <= self.left_milli and order.turns:
                turn = order.first(lines)
                if turn is not None and (best is None or turn < best):
                    best = turn
        return best

    def _orders(self) -> list[Order]:
        """Of those awake."""
        return [self.order, *(order for milli, order in self.short.items() if milli <= self.left_milli)]

    def first_let_in(
        self, lines: Mapping[ShapeId, Line], rooms: Rooms, best: Turn | None, last_reserved: Turn | None
    ) -> Turn | None:
        """The first of those refused that one of the improved rooms has room for, or that is worth a try for the sake
        of reservations, if it comes before `best`.
        """
        improved = self.improved
        # Who fits where something is kept is known by `woken`.
        most, part = self._look_over(with_kept=not self.woken)
        found, latest = best, self.woken_for
        beyond = len(latest) - 1
        for size, refused in self.refused.items():
            if not (part if size == PART else size <= most):
                if size >= beyond or latest[size] <= refused.asked_at or not self._wakes(size, rooms):
                    continue
                if found is None and self._refuse_again(refused, lines, rooms, last_reserved):
                    continue
            order = refused.order
            all_listed = not refused.tried or not self.looked
            if refused.tried and not self.looked:
                for tried in refused.tried.values():
                    order.list_crowd(tried, self.crowds)
                refused.tried.clear()
            if order.turns and not order.may_precede(found):
                continue  # not asked: none of them is before the one found
            while (turn := order.first(lines)) is not None:
                if found is not None and turn >= found:
                    break
                crowd = lines[turn[3]].crowd
                if fitting := rooms.fitting_of(improved.values(), crowd.demand):
                    if self._runs_short(crowd, rooms):
                        continue
                    found, self.fitting = turn, fitting
                    break
                if self.woken and self._is_worth_a_try(crowd, turn, rooms, last_reserved):
                    found, self.fitting = turn, []
                    break
                if crowd.beside and crowd.milli > rooms.idle_milli and crowd.size > 0:
                    crowd.beside = not self._fits_woken(crowd)
                self.block(crowd)
            else:
                refused.asked_at = self.wakes if all_listed else refused.asked_at
        self.looked = True
        if found is None:
            self._forget_improved()
        return None if found is best else found

    def _wakes(self, size: int, rooms: Rooms) -> bool:
        """May those of this size have fitted in a room as it was, and is that of any use?"""
        return self._latest(size) > 0 and (size == PART or rooms.idle_milli > 0)

    def _refuse_again(
        self, refused: Refused, lines: Mapping[ShapeId, Line], rooms: Rooms, last_reserved: Turn | None
    ) -> bool:
        """Nothing is left for those of one size. If none of them is worth a try for the sake of reservations either, as
        mostly, all are refused at once: one by one it was half of a pass.
        """
        if last_reserved is None or rooms.improved:
            return False
        order = refused.order
        crowds = [] if self.looked else [*refused.tried.values()]
        for turn in order.turns:
            line = lines.get(turn[3])
            if line is not None and line.crowd.listed_as is turn and line.crowd.listed_in is order:
                crowds.append(line.crowd)
        kept_ms, idle_milli = rooms.kept_ms if rooms.reserved else -1, rooms.idle_milli
        for crowd in crowds:
            if crowd.refused_kept < kept_ms or (crowd.beside and crowd.milli > idle_milli):
                return False
            first = crowd.first()
            if first is None or first < last_reserved:
                return False
        if not self.looked or not refused.tried:
            refused.asked_at = self.wakes
        order.turns = []
        for crowd in crowds:
            self.block(crowd)
        return True

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
        taken = []
        for order in self._orders():
            parts = []
            for turn in order.turns:
                line = lines.get(turn[3])
                if line is None or line.crowd.listed_as is not turn or line.crowd.listed_in is not order:
                    continue
                if line.crowd.takes_part_of_a_card:
                    parts.append(turn)
                else:
                    taken.append(line.crowd)
            heapify(parts)
            order.turns = parts
        return taken

    def start_over(self) -> None:
        """The order of all lines changed."""
        self.order.turns = []
        for order in self.short.values():
            order.turns = []
        for refused in self.refused.values():
            refused.order.turns = []
        for crowd in self.crowds.values():
            crowd.relist()
            crowd.listed_as = None  # but it stays in its order
            self.wake(crowd)

    # quota

    def set_left(self, milli: int) -> None:
        """So much is left, as far as anybody asked."""
        self.left_milli = milli
        self.closed = self.closed and milli <= 0
        if self.turned_away and milli >= 0:
            again = [*self.turned_away.values()]
            self.turned_away.clear()
            for crowd in again:
                crowd.turned_away = False
                self.wake(crowd)

    def run_short(self, crowd: Crowd) -> None:
        """Its pool has not enough left for it."""
        crowd.unlist()
        order = self.short.get(crowd.milli)
        if order is None:
            self._drop_empty()
            order = self.short[crowd.milli] = Order()
        order.list_crowd(crowd, self.crowds)

    def _runs_short(self, crowd: Crowd, rooms: Rooms) -> bool:
        """Is it known that too little is left for it? Then it need not come up: where a pool has half a GPU left, all
        who want a whole one would, in turn. Who wants more than is idle is not meant: it is refused.
        """
        milli = crowd.milli
        if milli <= self.left_milli or (milli > rooms.idle_milli and not crowd.takes_part_of_a_card):
            return False
        self.run_short(crowd)
        return True

    def turn_away(self, crowd: Crowd) -> None:
        """Its pool has not enough left for what it would have got. On another card it may claim less."""
        crowd.unlist()
        crowd.turned_away = True
        self.turned_away[crowd.key] = crowd

    def _drop_empty(self) -> None:
        self.short = {milli: order for milli, order in self.short.items() if order.turns}

    def forget(self, crowd: Crowd) -> None:
        del self.crowds[crowd.key]
        if crowd.blocked:
            self.refused[crowd.size].tried.pop(crowd.key, None)
        self.turned_away.pop(crowd.key, None)
