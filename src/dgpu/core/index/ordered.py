"""Sorted entries in blocks: adding and removing cost the same for 20 entries and for 20,000."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Final, Generic, TypeAlias, TypeVar

T = TypeVar("T")
Id: TypeAlias = str | int
Entry: TypeAlias = tuple[int, Id, T]  # (amount, id, member); amount and id are unique together

_MOST: Final = 256  # entries in a block; a list of this length moves in a fraction of a microsecond


class Ordered(Generic[T]):
    """Sorted by amount, then by id. Blocks are never empty, except a first one."""

    __slots__ = ("_blocks", "_lasts")

    def __init__(self) -> None:
        self._blocks: list[list[Entry[T]]] = [[]]
        self._lasts: list[tuple[int, Id]] = []  # the last entry of each block but the last block

    def __bool__(self) -> bool:
        return bool(self._blocks[0])

    def add(self, amount: int, id_: Id, member: T) -> None:
        place = bisect_left(self._lasts, (amount, id_)) if self._lasts else 0
        block = self._blocks[place]
        insort(block, (amount, id_, member))
        if len(block) > _MOST:
            half = len(block) // 2
            self._blocks.insert(place + 1, block[half:])
            del block[half:]
            self._lasts.insert(place, block[-1][:2])

    def remove(self, amount: int, id_: Id) -> None:
        key: tuple[Id, ...] = (amount, id_)  # looked up twice: see packing.GroupKey
        place = bisect_left(self._lasts, key) if self._lasts else 0
        block = self._blocks[place]
        del block[bisect_left(block, key)]
        # `_lasts` may now name a removed entry: it still separates its block from the next.
        if not block and self._lasts:
            del self._blocks[place]
            del self._lasts[min(place, len(self._lasts) - 1)]

    def first_from(self, amount: int) -> T | None:
        """The member with the smallest amount that is at least `amount`."""
        key = (amount,)
        place = bisect_left(self._lasts, key) if self._lasts else 0
        block = self._blocks[place]
        inside = bisect_left(block, key)
        if inside < len(block):
            return block[inside][2]
        # Reached only if entries were removed from the end of the block.
        return self._blocks[place + 1][0][2] if place + 1 < len(self._blocks) else None

    def last(self) -> T:
        return self._blocks[-1][-1][2]

    def all_from(self, amount: int) -> Iterator[T]:
        key = (amount,)
        place = bisect_left(self._lasts, key) if self._lasts else 0
        for block in self._blocks[place:]:
            for entry in block[bisect_left(block, key) :]:
                yield entry[2]
