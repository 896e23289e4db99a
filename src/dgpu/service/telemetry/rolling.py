"""Roll-ups: fewer points, each with the mean and the maximum of its source points."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

Values = Sequence[int | None]


def rolled(columns: Sequence[Values], each: int, *, raw: bool) -> list[list[int | None]]:
    """Turns `each` points into one. Means of all columns first, then maxima; a coarser tier already has both."""
    half = len(columns) if raw else len(columns) // 2
    means, highest = columns[:half], columns if raw else columns[half:]
    return [_by(column, each, _mean) for column in means] + [_by(column, each, max) for column in highest]


def _by(column: Values, each: int, of: Callable[[Sequence[int]], int]) -> list[int | None]:
    result: list[int | None] = []
    for start in range(0, len(column), each):
        there = [value for value in column[start : start + each] if value is not None]
        result.append(of(there) if there else None)
    return result


def _mean(values: Sequence[int]) -> int:
    return round(sum(values) / len(values))


class Buckets:
    """Gathers points of several steps into buckets of one step."""

    def __init__(self, *, start_ms: int, step_ms: int, count: int, columns: int) -> None:
        self._start_ms = start_ms
        self._step_ms = step_ms
        self._count = count
        self._sums = [[0] * count for _ in range(columns)]
        self._weights = [[0] * count for _ in range(columns)]
        self.highest: list[list[int | None]] = [[None] * count for _ in range(columns)]

    def add(
        self, at: int, step_ms: int, means: Sequence[Values], highest: Sequence[Values], weight: int
    ) -> None:
        """Adds points from `at` on, one every `step_ms`; points outside the buckets are left out."""
        places = self._places(at, step_ms, len(means[0]) if means else 0)
        for column, (values, peaks) in enumerate(zip(means, highest, strict=True)):
            sums, weights, most = self._sums[column], self._weights[column], self.highest[column]
            has_gaps = None in values
            for bucket, first, end in places:
                some, tops = values[first:end], peaks[first:end]
                if has_gaps:
                    some = [value for value in some if value is not None]
                    tops = [value for value in tops if value is not None]
                    if not some:
                        continue
                sums[bucket] += sum(some) * weight  # type: ignore[arg-type]  # no gap is left
                weights[bucket] += len(some) * weight
                peak: int = max(tops)  # type: ignore[type-var,assignment]
                known = most[bucket]
                most[bucket] = peak if known is None or peak > known else known

    def _places(self, at: int, step_ms: int, points: int) -> list[tuple[int, int, int]]:
        """Bucket, index of its first point, and index after its last point."""
        places: list[tuple[int, int, int]] = []
        point = max(0, -(-(self._start_ms - at) // step_ms))
        while point < points:
            bucket = (at + point * step_ms - self._start_ms) // self._step_ms
            if bucket >= self._count:
                break
            bucket_end_ms = self._start_ms + (bucket + 1) * self._step_ms
            end = min(points, -(-(bucket_end_ms - at) // step_ms))
            places.append((bucket, point, end))
            point = end
        return places

    def means(self, column: int) -> list[float | None]:
        return [
            total / weight if weight else None
            for total, weight in zip(self._sums[column], self._weights[column], strict=True)
        ]


def scaled(values: Iterable[float | None], *, tenths: bool) -> list[float | None]:
    """Values for display: utilisation in percent, at most one decimal."""
    if tenths:
        return [None if value is None else round(value / 10, 1) for value in values]
    return [value if value is None or type(value) is int else _neat(value) for value in values]


def _neat(value: float) -> float:
    """A whole number is returned as int, which is shorter in JSON."""
    rounded = round(value, 1)
    whole = int(rounded)
    return whole if whole == rounded else rounded
