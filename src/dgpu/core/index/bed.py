"""Beds: lines that sleep for the same reason, in order.

A line is in exactly one bed. The first line of an open bed is worth a try. If it is refused for the reason of its bed,
the whole bed closes: the same rule with the same numbers refuses the others, too.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush, heapreplace
from typing import Any, Final, TypeAlias

from dgpu.core.index.line import FIRST_OF_ALL, Line, Turn

# The common properties of the lines of a bed; see beds.bed_key. The type has no fixed length for the compiler, because
# tuples of different lengths are keys of one dict.
BedKey: TypeAlias = tuple[Any, ...]

_SLACK: Final = 64  # stale entries allowed in a heap beyond the valid ones


class Bed:
    """`is_open`: a change may have lifted the refusal. `for_slot`: only a free reservation slot keeps the bed open, for
    lines that were not tried since.
    """

    __slots__ = (
        "_turns",
        "for_slot",
        "gpus_milli",
        "is_open",
        "key",
        "lines",
        "number",
        "offered",
        "refused",
        "tried",
    )

    def __init__(self, key: BedKey, number: int, gpus_milli: int = 0) -> None:
        self.key = key
        self.gpus_milli = gpus_milli  # no line starts while fewer GPUs are idle in the cluster; 0: unknown
        self.number = number  # orders heap entries with the same turn
        self.lines: dict[Line, None] = {}
        self.is_open = True
        self.for_slot = False
        self.offered: Turn | None = None  # the turn under which the offers list it
        self.refused: Turn = FIRST_OF_ALL  # the turn of the line that closed it
        self.tried: list[Line] = []  # tried lines, out of the order until the bed opens or closes
        # A heap with stale entries: turn, number, line. Comparing nested tuples would take twice as long.
        self._turns: list[tuple[int, int, int, int, Line]] = []

    def enter(self, line: Line) -> None:
        self.lines[line] = None
        line.bed, line.listed = self, None
        self.list_line(line)

    def leave(self, line: Line) -> None:
        del self.lines[line]
        line.listed = None

    def set_aside(self, line: Line) -> None:
        """The line was tried."""
        line.listed = None
        self.tried.append(line)

    def put_back(self) -> None:
        for line in self.tried:
            if line.bed is self:
                line.listed = None
                self.list_line(line)
        self.tried.clear()

    def list_line(self, line: Line) -> bool:
        """Lists a line after its turn changed. Entries that are too early are corrected when they come up. True: it has
        a new entry.
        """
        turn = line.turn()
        if turn is None or (line.listed is not None and line.listed <= turn):
            return False
        line.listed = turn
        heappush(self._turns, (turn[0], turn[1], turn[2], line.number, line))
        if len(self._turns) > 2 * len(self.lines) + _SLACK:
            self.list_all()
        return True

    def list_all(self) -> None:
        self._turns = []
        for line in self.lines:
            turn = line.listed = line.turn()
            if turn is not None:
                self._turns.append((turn[0], turn[1], turn[2], line.number, line))
        heapify(self._turns)

    def first(self) -> Line | None:
        """The first line in order with a task to place. `line.listed` is its turn."""
        turns = self._turns
        while turns:
            _, standing, head, number, line = turns[0]
            if line.bed is not self or not is_turn(line.listed, standing, head):
                heappop(turns)
                continue
            if line.stands_at(standing, head):
                return line
            now = line.listed = line.turn()
            if now is None:
                heappop(turns)
            else:
                heapreplace(turns, (now[0], now[1], now[2], number, line))
        return None

    def close(self) -> None:
        self.put_back()
        self.is_open = self.for_slot = False

    def discard(self) -> None:
        self.lines.clear()
        self.tried.clear()
        self._turns.clear()


class Offers:
    """Open beds by their first turn: a heap with stale entries."""

    __slots__ = ("_beds",)

    def __init__(self) -> None:
        self._beds: list[tuple[int, int, int, int, Bed]] = []  # turn, number, bed

    def __bool__(self) -> bool:
        return bool(self._beds)

    def offer(self, bed: Bed) -> None:
        first = bed.first()
        if first is None or first.listed is None:
            return
        turn = first.listed
        if bed.offered is None or turn < bed.offered:
            bed.offered = turn
            heappush(self._beds, (turn[0], turn[1], turn[2], bed.number, bed))

    def first(self) -> Line | None:
        """The first line in order over all open beds."""
        beds = self._beds
        while beds:
            _, standing, head, number, bed = beds[0]
            if not is_turn(bed.offered, standing, head):
                heappop(beds)
                continue
            first = bed.first() if bed.is_open else None
            if first is not None and is_turn(first.listed, standing, head):
                return first
            now = bed.offered = None if first is None else first.listed
            if now is None:
                heappop(beds)
            else:
                heapreplace(beds, (now[0], now[1], now[2], number, bed))
        return None

    def close_larger(self, idle_milli: int, slot_level: int) -> None:
        """Closes untried the beds that need more than the idle GPUs, unless their lines may take a reservation slot.
        Mostly the first bed takes the GPU that woke them all.
        """
        kept = []
        for entry in self._beds:
            level, standing, head, _, bed = entry
            if not is_turn(bed.offered, standing, head):
                continue
            if bed.is_open and (bed.gpus_milli <= idle_milli or -level > slot_level):
                kept.append(entry)
                continue
            if bed.is_open and bed.offered is not None:
                bed.refused = bed.offered
                bed.close()
            bed.offered = None
        heapify(kept)
        self._beds = kept


def is_turn(turn: Turn | None, standing: int, head: int) -> bool:
    """Compares without the level: a head has one level."""
    return turn is not None and turn[2] == head and turn[1] == standing
