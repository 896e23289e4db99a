"""Times in requests: an age (`30d`, `6h`), `now`, or RFC 3339; and the step of a chart."""

from __future__ import annotations

import datetime as dt
import re

from dgpu.wire.fields import Unacceptable
from dgpu.wire.wall_time import SHOWN

_UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)([smhdw])")
_SECONDS = re.compile(r"\d{1,9}")
_LONGEST_TEXT = 64
EXPECTED_MOMENT = "an age like 30d, 6h, 90m, `now`, or a time like 2026-07-30T12:00:00Z"
EXPECTED_STEP = "seconds or a duration like 10m, a multiple of 10 s"


def duration_ms(text: str) -> int | None:
    match = _DURATION.fullmatch(text)
    return None if match is None else round(float(match[1]) * _UNITS_MS[match[2]])


def moment_ms(text: str, now_ms: int) -> int:
    """A time of the journal. Raises Unacceptable."""
    text = text.strip()
    if text == "now":
        return now_ms
    ago = duration_ms(text)
    if ago is not None:
        return SHOWN.at_ms(SHOWN.wall_ms(now_ms) - ago)
    if len(text) > _LONGEST_TEXT:
        raise Unacceptable(EXPECTED_MOMENT)
    try:
        # an unescaped `+` in a query arrives as a space
        at = dt.datetime.fromisoformat(re.sub(r" (?=\d\d:?\d\d$)", "+", text))
        wall_ms = round((at if at.tzinfo else at.replace(tzinfo=dt.UTC)).timestamp() * 1_000)
    except (ValueError, OverflowError):
        raise Unacceptable(EXPECTED_MOMENT) from None
    return SHOWN.at_ms(wall_ms)


def step_ms(text: str) -> int:
    """Raises Unacceptable."""
    step = int(text) * 1_000 if _SECONDS.fullmatch(text) else duration_ms(text)
    if not step or step % 10_000:
        raise Unacceptable(EXPECTED_STEP)
    return step
