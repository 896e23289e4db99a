"""Packs columns of integers, some of them missing, into few bytes: differences, zigzag, zlib.

    2 bytes  number of values in each column
    per column:
      1 byte   width of its differences (B, H, I or Q), or `-` if every value is missing
      1 byte   1 if some are missing, then one byte 0 or 1 for each value (zlib shrinks them to almost nothing)
      8 bytes  the first known value, then the differences of the others

All numbers are little-endian. The columns are compressed together: those of one GPU resemble each other.
"""

from __future__ import annotations

import struct
import sys
import zlib
from array import array
from collections.abc import Sequence
from functools import cache
from itertools import accumulate, pairwise

Column = Sequence[int | None]

MAX_VALUES = 65_535
MAX_NUMBER = 1 << 62  # so that a difference still fits
_MAX_BYTES = 64 << 20  # limit for the claimed size of a damaged body
_LEVEL = 6
_WIDTHS = "BHIQ"
_ALL_MISSING = ord("-")
_HEAD = struct.Struct("<H")
_COLUMN = struct.Struct("<BBq")


class Damaged(ValueError):  # noqa: N818 - the name states the failure
    """Not a result of `encode`."""


def encode(columns: Sequence[Column]) -> bytes:
    """Raises ValueError for columns of different lengths and for numbers beyond 62 bits."""
    count = len(columns[0]) if columns else 0
    if count > MAX_VALUES or any(len(column) != count for column in columns):
        raise ValueError(f"columns must be equally long, and of at most {MAX_VALUES} values")
    parts = [_HEAD.pack(count)]
    for column in columns:
        parts += _encoded(column)
    return zlib.compress(b"".join(parts), _LEVEL)


def _encoded(column: Column) -> list[bytes]:
    there = [value for value in column if value is not None]
    if not there:
        return [_COLUMN.pack(_ALL_MISSING, 0, 0)]
    if max(there) >= MAX_NUMBER or min(there) <= -MAX_NUMBER:
        raise ValueError("a number beyond 62 bits")
    steps = [later - earlier for earlier, later in pairwise(there)]
    zigzag = [step << 1 if step >= 0 else ~(step << 1) for step in steps]
    width = _width(max(zigzag, default=0))
    has_gaps = len(there) < len(column)
    parts = [_COLUMN.pack(ord(width), has_gaps, there[0])]
    if has_gaps:
        parts.append(bytes([value is not None for value in column]))
    parts.append(_little(array(width, zigzag)).tobytes())
    return parts


def decode(body: bytes) -> list[list[int | None]]:
    """Raises Damaged."""
    try:
        return _decoded(_unpacked(body))
    except (zlib.error, struct.error, IndexError, ValueError) as error:
        raise Damaged(str(error)) from error


def _unpacked(body: bytes) -> bytes:
    unpacking = zlib.decompressobj()
    plain = unpacking.decompress(body, _MAX_BYTES)
    if not unpacking.eof or unpacking.unused_data:
        raise ValueError("cut off, or followed by something else")
    return plain


def _decoded(plain: bytes) -> list[list[int | None]]:
    (count,) = _HEAD.unpack_from(plain)
    at = _HEAD.size
    columns: list[list[int | None]] = []
    while at < len(plain):
        kind, has_gaps, first = _COLUMN.unpack_from(plain, at)
        at += _COLUMN.size
        if kind == _ALL_MISSING:
            columns.append([None] * count)
            continue
        there = plain[at : at + count] if has_gaps else b""
        at += len(there)
        number = there.count(1) if has_gaps else count
        width = chr(kind)
        if width not in _WIDTHS or not number or (has_gaps and len(there) != count):
            raise ValueError("a column of an unknown kind")
        zigzag = array(width)
        length = (number - 1) * zigzag.itemsize
        if at + length > len(plain):
            raise ValueError("a column is cut off")
        zigzag.frombytes(plain[at : at + length])
        at += length
        columns.append(_placed(_summed(first, _little(zigzag)), there))
    return columns


def _summed(first: int, zigzag: array[int]) -> list[int]:
    if zigzag.itemsize <= 2:
        return list(accumulate(map(_unzigzag().__getitem__, zigzag), initial=first))
    return list(accumulate(((number >> 1) ^ -(number & 1) for number in zigzag), initial=first))


@cache
def _unzigzag() -> tuple[int, ...]:
    """The values of all two-byte numbers. Computed when first needed: a scheduler starts more often than it decodes."""
    return tuple((number >> 1) ^ -(number & 1) for number in range(65_536))


def _placed(values: list[int], there: bytes) -> list[int | None]:
    if not there:
        return list(values)
    following = iter(values)
    return [next(following) if is_there else None for is_there in there]


def _width(most: int) -> str:
    for width in _WIDTHS:
        if most < 1 << 8 * array(width).itemsize:
            return width
    raise ValueError("a difference beyond 64 bits")


def _little(numbers: array[int]) -> array[int]:
    if sys.byteorder == "big":
        numbers = numbers[:]
        numbers.byteswap()
    return numbers
