"""A lane: the crowds of one pool that are worth a try, in order. Closed: its pool has nothing left to give."""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heapify, heappop, heappush, heapreplace

from dgpu.core.ids import ShapeId
from dgpu.core.line import SLACK, Crowd, CrowdKey, Line, Turn
from dgpu.core.task import Pool


class Lane:
    """Tasks without GPUs have a lane of their own, which no quota closes."""

    __slots__ = ("closed", "crowds", "gated", "limit_milli", "order", "other", "pool", "ready", "used_milli")

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
        self.order: list[Turn] = []  # heap: the first turns of crowds awake, stale ones too

    @property
    def any_awake(self) -> bool:
        return bool(self.order) and not self.closed

    def first(self, lines: Mapping[ShapeId, Line]) -> Turn | None:
        order = self.order
        while order:
            turn = order[0]
            line = lines.get(turn[3])
            if line is None or line.crowd.awake_as is not turn:
                heappop(order)
                continue
            crowd = line.crowd
            first = crowd.first()
            if first is turn:
                return turn
            crowd.awake_as = first
            if first is None:
                heappop(order)
            else:
                heapreplace(order, first)
        return None

    def wake(self, crowd: Crowd) -> None:
        if crowd.blocked or crowd.gated_at is not None:
            return
        turn = crowd.first()
        if turn is None or (crowd.awake_as is not None and crowd.awake_as <= turn):
            return
        crowd.awake_as = turn
        heappush(self.order, turn)
        if len(self.order) > 2 * len(self.crowds) + SLACK:
            self.order = [each.awake_as for each in self.crowds.values() if each.awake_as is not None]
            heapify(self.order)

    def take_whole(self, lines: Mapping[ShapeId, Line]) -> list[Crowd]:
        """The crowds awake that need whole GPUs; those that take a part of one stay."""
        taken, parts = [], []
        for turn in self.order:
            line = lines.get(turn[3])
            if line is None or line.crowd.awake_as is not turn:
                continue
            if line.crowd.takes_part_of_a_card:
                parts.append(turn)
            else:
                taken.append(line.crowd)
        heapify(parts)
        self.order = parts
        return taken

    def start_over(self) -> None:
        """The order of all lines changed."""
        self.order = []
        for crowd in self.crowds.values():
            crowd.relist()
            crowd.awake_as = None
            self.wake(crowd)

    def gate(self, crowd: Crowd, lacks_milli: int) -> None:
        """Its pool has not enough left for it."""
        crowd.awake_as = None
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
        if crowd.gated_at is not None:
            self.gated[crowd.gated_at].pop(crowd.key, None)
