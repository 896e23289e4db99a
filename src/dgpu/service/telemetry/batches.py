"""Batches that are not in a chunk yet, as stored in the file: one value can be read without reading the others."""

from __future__ import annotations

import sys
import zlib
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

from dgpu.service.telemetry.codec import Damaged

_LEVEL = 1
_MAX_BYTES = 64 << 20
_MISSING = {"i": -(1 << 31), "q": -(1 << 63)}
_LARGEST = {"i": (1 << 31) - 1, "q": (1 << 63) - 1}


class Packed:
    """Series and their numbers at one moment: first the series in rising order, then one column after the other."""

    def __init__(self, numbers: array[int], columns: int) -> None:
        self._numbers = numbers
        self.count = len(numbers) // (columns + 1)
        self._columns = columns

    @property
    def series(self) -> Sequence[int]:
        return self._numbers[: self.count]

    def place_of(self, series: int) -> int | None:
        place = bisect_left(self._numbers, series, 0, self.count)
        return place if place < self.count and self._numbers[place] == series else None

    def values_at(self, place: int) -> list[int | None]:
        missing = _MISSING[self._numbers.typecode]
        return [None if value == missing else value for value in self.row(place)]

    def row(self, place: int) -> Sequence[int]:
        """As stored: a missing value is `missing_of` the type."""
        return self._numbers[self.count + place :: self.count]


def pack(series: Sequence[int], columns: Sequence[Sequence[int | None]], typecode: str = "i") -> bytes:
    numbers: array[int] = array(typecode, series)
    for column in columns:
        numbers.extend(_plain(column, typecode))
    if sys.byteorder == "big":
        numbers.byteswap()
    return zlib.compress(numbers.tobytes(), _LEVEL)


def _plain(column: Sequence[int | None], typecode: str) -> array[int]:
    missing, largest = _MISSING[typecode], _LARGEST[typecode]
    try:
        plain: array[int] = array(typecode, column)  # type: ignore[arg-type]  # mostly no gap, and fast
    except (TypeError, OverflowError):
        return array(
            typecode,
            [missing if value is None else max(missing + 1, min(value, largest)) for value in column],
        )
    return plain


def unpack(body: Any, columns: int, typecode: str = "i") -> Packed:
    """Raises Damaged."""
    numbers: array[int] = array(typecode)
    try:
        unpacking = zlib.decompressobj()
        numbers.frombytes(unpacking.decompress(body, _MAX_BYTES))
    except (zlib.error, ValueError) as error:
        raise Damaged(str(error)) from error
    if not unpacking.eof or len(numbers) % (columns + 1):
        raise Damaged("a batch is cut off")
    if sys.byteorder == "big":
        numbers.byteswap()
    return Packed(numbers, columns)


def missing_of(typecode: str) -> int:
    return _MISSING[typecode]
