"""Shows times of the journal as wall clock times (see core.wall_span).

A process shows the time of one journal, so the table belongs to the process, like its time zone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dgpu.core.model.wall_span import (
        WallSpan,  # the client shows times too, and needs no other part of the core
    )


class WallTime:
    """Newest span first, each with the `at` at which it began. Times before the first span are shown as they are."""

    __slots__ = ("_spans",)

    def __init__(self) -> None:
        self._spans: tuple[tuple[int, int], ...] = ()

    def follow(self, spans: Mapping[int, WallSpan]) -> None:
        self._spans = tuple((since, spans[since].wall_offset_ms) for since in sorted(spans, reverse=True))

    def wall_ms(self, at: int) -> int:
        for since, offset_ms in self._spans:
            if at >= since:
                return at + offset_ms
        return at

    def at_ms(self, wall_ms: int) -> int:
        """The newest `at` that is shown as this time; between two spans, the start of the later one."""
        until: int | None = None
        for since, offset_ms in (*self._spans, (0, 0)):
            at = wall_ms - offset_ms
            if at >= since:
                return at if until is None else min(at, until)
            until = since
        return wall_ms


SHOWN = WallTime()
_UNITS = ((86_400_000, "days"), (3_600_000, "hours"), (60_000, "minutes"))


def words_of_ms(length_ms: int) -> str:
    """3.5 days, 42 seconds."""
    for unit_ms, name in _UNITS:
        if length_ms >= 2 * unit_ms:
            return f"{_rounded(length_ms / unit_ms)} {name}"
    return f"{_rounded(length_ms / 1000)} seconds"


def _rounded(number: float) -> str:
    return f"{number:.0f}" if number >= 10 else f"{number:.1f}".removesuffix(".0")
