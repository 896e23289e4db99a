"""Formats numbers and times for people. Programs get exact values from JSON."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime, time, timedelta

from dgpu.client.language import Facts, told, waiting

_DAY_TIME = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?")
_STEPS = ((86_400, "d"), (3_600, "h"), (60, "m"))


def duration(seconds: float | None) -> str:
    """At most two units: `0.4s`, `12s`, `3m05s`, `2h10m`, `4d03h`."""
    if seconds is None:
        return ""
    seconds = max(0.0, seconds)
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3_600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86_400:
        return f"{whole // 3_600}h{whole % 3_600 // 60:02d}m"
    return f"{whole // 86_400}d{whole % 86_400 // 3_600:02d}h"


def limit(seconds: float | None) -> str:
    """A time limit as a user would type it: `15m`, `2h`, `90s`."""
    if not seconds:
        return "none"
    for step, unit in _STEPS:
        if seconds >= step and seconds % step == 0:
            return f"{int(seconds // step)}{unit}"
    return f"{seconds:g}s"


def memory(megabytes: float | None) -> str:
    if megabytes is None:
        return ""
    if megabytes < 1_024:
        return f"{megabytes:.0f}M"
    gigabytes = megabytes / 1_024
    return f"{gigabytes:.0f}G" if gigabytes == int(gigabytes) or gigabytes >= 100 else f"{gigabytes:.1f}G"


def moment(value: str | datetime | None) -> datetime | None:
    """RFC 3339, or None."""
    if not value:
        return None
    if isinstance(value, datetime):
        return value if value.tzinfo else value.replace(tzinfo=UTC)
    try:
        parsed = datetime.fromisoformat(value)
    except ValueError:
        return None
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)


def clock(value: str | datetime | None, now: datetime | None = None) -> str:
    """Local time; with the date only if it is another day."""
    at = moment(value)
    if at is None:
        return ""
    local = at.astimezone()
    today = (now or datetime.now(UTC)).astimezone().date()
    return local.strftime("%H:%M:%S" if local.date() == today else "%Y-%m-%d %H:%M:%S")


def period(start: str, end: str, now: datetime | None = None) -> str:
    """`10:00:00 to 11:00:00`; `2026-10-19 15:34:06 to today 15:34:06`."""
    first, last = clock(start, now), clock(end, now)
    return f"{first} to {'today ' if ' ' in first and ' ' not in last else ''}{last}"


def since(value: str | datetime | None, now: datetime | None = None) -> float | None:
    at = moment(value)
    if at is None:
        return None
    return ((now or datetime.now(UTC)) - at).total_seconds()


def between(start: str | datetime | None, end: str | datetime | None) -> float | None:
    first, last = moment(start), moment(end)
    if first is None or last is None:
        return None
    return (last - first).total_seconds()


def plural(count: int, one: str, many: str = "") -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def listed(words: Iterable[str], most: int = 6) -> str:
    """`a, b, c and 4 more`."""
    given = list(words)
    if len(given) <= most:
        return ", ".join(given)
    return f"{', '.join(given[:most])} and {len(given) - most:,} more"


def waits_text(blockers: Iterable[Facts], english: str) -> str:
    why = waiting(blockers, english)
    return told("text", "waits", {"why": why}, f"It waits: {why}")


def one_line(text: str) -> str:
    """Removes newlines and escape sequences, which must not reach the terminal."""
    return "".join(sign if sign.isprintable() else "?" for sign in text)


def in_our_zone(text: str, now: datetime | None = None) -> str:
    """A time without a zone is local time; one without a day is its last occurrence. Other texts stay unchanged."""
    now = now or datetime.now(UTC)
    try:
        typed = _last(text.strip(), now.astimezone()) or datetime.fromisoformat(text.strip())
        return text if typed.tzinfo is not None else typed.astimezone().isoformat()
    except (ValueError, OverflowError):
        return text


def _last(text: str, now: datetime) -> datetime | None:
    """In the local zone, which may have had another offset on that day."""
    if not (match := _DAY_TIME.fullmatch(text)):
        return None
    hour, minute, second = (int(part or 0) for part in match.groups())
    today = datetime.combine(now.date(), time(hour, minute, second))
    return today if today <= now.replace(tzinfo=None) else today - timedelta(days=1)
