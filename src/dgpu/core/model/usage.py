"""The use of tenants: decayed for the fair share, by month for budgets. All numbers are integers, so replays agree.

Decay runs forward. Old use does not shrink as time passes; instead new use counts more, by a factor that doubles with
every half-life since a landmark. So two tenants compare the same at any later time, and no entry must be updated
because time passed. When the factor has doubled, the landmark moves and all entries shrink alike, so that numbers stay
within 64 bits.
"""

from __future__ import annotations

from math import isqrt
from typing import Final

import msgspec

STEP_MS: Final = 60_000  # the factor grows in these steps, and running tasks are charged in them
HOUR_MS: Final = 3_600_000
_DAY_MS: Final = 24 * HOUR_MS
_DAYS_BEFORE_1970: Final = 719_468  # since 1 March of the year 0
_DAYS_IN_400_YEARS: Final = 146_097
_BITS: Final = 32  # of the fixed point
ONE: Final = 1 << _BITS
_PARTS: Final = 16  # bits of a fraction of a half-life


def _roots() -> tuple[int, ...]:
    """2 to the power of 1/2, 1/4, 1/8 ..., in fixed point."""
    roots, root = [], 2 * ONE
    for _ in range(_PARTS):
        root = isqrt(root << _BITS)
        roots.append(root)
    return tuple(roots)


_ROOTS: Final = _roots()


class Usage(
    msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True, omit_defaults=True, gc=False
):
    """The use of one tenant, in thousandths of a GPU times milliseconds."""

    weighed: int = 0  # with the factor of the time of use
    month: int = 0  # months since the year 0
    of_month: int = 0


class Meter(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True, omit_defaults=True):
    """The time up to which use is charged, and the landmark of the factor."""

    charged_at: int = 0
    landmark_at: int = 0
    half_life_ms: int = 24 * HOUR_MS


def factor(meter: Meter, at: int) -> int:
    """In fixed point: 1 at the landmark, 2 a half-life later."""
    age = max(0, at - meter.landmark_at) // STEP_MS * STEP_MS
    halves = (age << _PARTS) // meter.half_life_ms
    value = ONE << (halves >> _PARTS)
    for place in range(_PARTS):
        if halves >> (_PARTS - 1 - place) & 1:
            value = value * _ROOTS[place] >> _BITS
    return value


def weigh(milli_ms: int, by_factor: int) -> int:
    return milli_ms * by_factor >> _BITS


def charged(usage: Usage, milli_ms: int, by_factor: int, month: int) -> Usage:
    """A wall clock that is set back does not restart a month."""
    before = usage.of_month if usage.month >= month else 0
    return Usage(
        weighed=usage.weighed + weigh(milli_ms, by_factor),
        month=max(usage.month, month),
        of_month=before + milli_ms,
    )


def decayed(usage: Usage, meter: Meter, at: int) -> int:
    """The use left at a time after decay."""
    return (usage.weighed << _BITS) // factor(meter, at)


def is_far(meter: Meter, at: int) -> bool:
    """The landmark must move before more use is stored."""
    return at - meter.landmark_at >= meter.half_life_ms


def month_of(at: int) -> int:
    """The calendar month in UTC, counted from the year 0."""
    # Days since March of the year 0: with February last, months follow one another at fixed days of the year.
    days = max(0, at) // _DAY_MS + _DAYS_BEFORE_1970
    era, of_era = divmod(days, _DAYS_IN_400_YEARS)
    year = (of_era - of_era // 1_460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * year + year // 4 - year // 100)
    from_march = (5 * of_year + 2) // 153
    return 12 * (400 * era + year) + 2 + from_march


def month_starts_at(month: int) -> int:
    year, from_march = divmod(month - 2, 12)
    days = 365 * year + year // 4 - year // 100 + year // 400 + (153 * from_march + 2) // 5
    return (days - _DAYS_BEFORE_1970) * _DAY_MS
