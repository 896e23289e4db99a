"""Crowds in the order of their turns."""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heapify, heappop, heappush, heapreplace

from dgpu.core.index.line import SLACK, Crowd, CrowdKey, Line, Turn
from dgpu.core.model.ids import ShapeId


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
                if turns[0] is first:  # mostly: who had the last turn has the next one too
                    return first
        return None

    def may_precede(self, turn: Turn | None) -> bool:
        """A stale entry stands no further back than the right one: so mostly nothing has to be put right to see that all
        here come later. None: anybody would do.
        """
        turns = self.turns
        return bool(turns) and (turn is None or turns[0] < turn)

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

    __slots__ = ("asked_at", "order", "tried")

    def __init__(self) -> None:
        self.order = Order()
        self.tried: dict[CrowdKey, Crowd] = {}
        self.asked_at = 0  # after so many wakes, see Lane: each of them was asked since
