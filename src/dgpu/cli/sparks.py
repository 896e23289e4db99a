"""A curve in a few characters."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

_BARS = "▁▂▃▄▅▆▇█"
_GAP = "·"


def spark(values: Sequence[float | None], *, width: int, most: float | None = None) -> str:
    """The maximum of each piece, so that a short peak is visible; a dot without data."""
    pieces = [_highest(piece) for piece in _pieces(values, width)]
    top = most if most is not None else max((piece for piece in pieces if piece is not None), default=0.0)
    return "".join(_GAP if piece is None else _BARS[_level(piece, top)] for piece in pieces)


def _pieces(values: Sequence[float | None], width: int) -> list[Sequence[float | None]]:
    number = min(width, len(values))
    edges = [round(place * len(values) / number) for place in range(number + 1)] if number else []
    return [values[start:end] for start, end in pairwise(edges)]


def _highest(piece: Sequence[float | None]) -> float | None:
    return max((value for value in piece if value is not None), default=None)


def _level(value: float, top: float) -> int:
    if top <= 0:
        return 0
    return min(len(_BARS) - 1, max(0, int(value / top * len(_BARS))))


def mean(values: Sequence[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return sum(there) / len(there) if there else None


def highest(values: Sequence[float | None]) -> float | None:
    return _highest(values)
