"""Ranges of bytes: start, end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

Range = tuple[int, int]


def uncovered(ranges: Iterable[Range], begin: int, end: int) -> Iterator[Range]:
    """The parts of [begin, end) outside these ranges, which must be sorted and must not overlap."""
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
    """Sorted, without overlaps and without empty ranges."""
    found: list[Range] = []
    for begin, end in sorted(ranges):
        if begin == end:
            continue
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((begin, end))
    return found
