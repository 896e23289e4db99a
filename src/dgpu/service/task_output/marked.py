"""Bytes of output with the times at which they were written."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple, Self, SupportsIndex

MAX_MARKS_BYTES = 1 << 20  # of one part of output
_MARK = struct.Struct("<QQ")  # as agent.marks writes them: offset; time in ms << 1 | stream


class Mark(NamedTuple):
    offset: int  # in the whole output of the attempt
    wall_ms: int  # of the node
    is_stderr: bool


class MarkedBytes(bytes):
    """A slice keeps its place and all marks. Without marks: of a version that wrote none."""

    offset: int
    marks: bytes

    def __new__(cls, data: bytes, offset: int, marks: bytes) -> Self:
        made = super().__new__(cls, data)
        made.offset = offset
        made.marks = marks
        return made

    def __getitem__(self, key: SupportsIndex | slice) -> int | bytes:  # type: ignore[override]
        if not isinstance(key, slice):
            return super().__getitem__(key)
        begin, _, step = key.indices(len(self))
        part = super().__getitem__(key)
        return MarkedBytes(part, self.offset + begin, self.marks) if step == 1 else part


def marks_in(packed: bytes) -> Iterator[Mark]:
    """Damaged marks are left out."""
    for offset, word in _MARK.iter_unpack(packed[: len(packed) - len(packed) % _MARK.size]):
        yield Mark(offset, word >> 1, bool(word & 1))
