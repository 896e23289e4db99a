"""Ranges of bytes: from, to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

Range = tuple[int, int]


def uncovered(ranges: Iterable[Range], begin: int, end: int) -> Iterator[Range]:
    """The parts of [begin, end) that none of these ranges holds; they are in order and apart from each other."""
    for low, high in ranges:
        if high <= begin:
            continue
        if low >= end:
            break
        if low > begin:
            yield begin, low
        begin = high
    if begin < end:
        yield begin, end


def merged(ranges: Iterable[Range]) -> list[Range]:
    """In order and apart from each other, without empty ones."""
    found: list[Range] = []
    for begin, end in sorted(ranges):
        if begin == end:
            continue
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((begin, end))
    return found
