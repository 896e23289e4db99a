"""Arrays: many tasks from one submit, each with its own index. `0-9%3`: ten tasks, three of them at a time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple, TypeAlias

MAX_TASKS: Final = 10_000  # of one array
MAX_INDEX: Final = 1_000_000_000
_MAX_TEXT: Final = 4_096
_PART: Final = re.compile(r"(\d{1,10})(?:-(\d{1,10})(?::(\d{1,10}))?)?", re.ASCII)
_LIMIT: Final = re.compile(r"\d{1,10}", re.ASCII)

Ranges: TypeAlias = tuple[tuple[int, int, int], ...]  # (first, last, step)


class ArrayPlan(NamedTuple):
    ranges: Ranges
    limit: int  # maximum of tasks that run at once; 0: none


class NoArray(ValueError):  # noqa: N818 - it says what the text is
    """The text describes the expected form."""


def parse_array(text: str) -> ArrayPlan:
    """`0-9`, `0-9%3`, `1,3,7-20:2%5`. Raises NoArray. The size is checked before any range is expanded."""
    if len(text) > _MAX_TEXT:
        raise NoArray(f"at most {_MAX_TEXT} characters")
    listed, percent, limit = text.replace(" ", "").partition("%")
    if percent and (not _LIMIT.fullmatch(limit) or not 1 <= int(limit) <= MAX_INDEX):
        raise NoArray("a number of tasks, at least 1, after %, as in 0-9%3")
    ranges = tuple(_range(part) for part in listed.split(","))
    number = size(ranges)
    if number > MAX_TASKS:
        raise NoArray(f"an array of at most {MAX_TASKS:,} tasks, not of {number:,}")
    if len(set(indexes(ranges))) < number:
        raise NoArray("each index only once")
    # A limit that the array cannot reach is no limit.
    return ArrayPlan(ranges, int(limit) if percent and int(limit) < number else 0)


def size(ranges: Ranges) -> int:
    return sum((last - first) // step + 1 for first, last, step in ranges)


def indexes(ranges: Ranges) -> Iterator[int]:
    for first, last, step in ranges:
        yield from range(first, last + 1, step)


def _range(part: str) -> tuple[int, int, int]:
    match = _PART.fullmatch(part)
    if match is None:
        raise NoArray("indexes like 0-9, 0-9%3 or 1,3,7-20:2%5")
    first = int(match[1])
    last = first if match[2] is None else int(match[2])
    step = 1 if match[3] is None else int(match[3])
    if last < first or step < 1 or last > MAX_INDEX:
        raise NoArray(f"an ascending range, with indexes up to {MAX_INDEX:,}")
    return first, last, step
