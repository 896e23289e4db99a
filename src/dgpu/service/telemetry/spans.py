"""Chooses the step of a chart: as fine as stored, with no more points than a screen shows."""

from __future__ import annotations

from dgpu.service.telemetry.reader import Span
from dgpu.service.telemetry.tiers import MINUTES, RAW, TENS

MAX_POINTS = 1_000  # if the client does not choose the step
MAX_ASKED = 1_500
_STEPS_S = (10, 20, 30, 60, 120, 300, 600, 1_200, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200, 86_400)


def span_of(since: int, until: int, *, now: int, step_ms: int | None = None) -> Span:
    """Raises ValueError with the smallest allowed step."""
    length = until - since
    if step_ms is None:
        step_ms = next(
            (each * 1_000 for each in _STEPS_S if length <= MAX_POINTS * each * 1_000),
            -(-length // (MAX_POINTS * 86_400_000)) * 86_400_000,
        )
    elif length > MAX_ASKED * step_ms:
        least = -(-length // (MAX_ASKED * 10_000)) * 10
        raise ValueError(
            f"at least {least} s for a range this long, so that at most {MAX_ASKED:,} points come back"
        )
    step_ms = max(step_ms, _kept_ms(now - since))
    return Span(since=since // step_ms * step_ms, until=-(-until // step_ms) * step_ms, step_ms=step_ms)


def _kept_ms(age_ms: int) -> int:
    """The finest stored step at this age."""
    if age_ms > MINUTES.keep_ms:
        return TENS.step_ms
    return MINUTES.step_ms if age_ms > RAW.keep_ms else RAW.step_ms
