"""When a task may begin: a time of day, a delay or a date, as the exact time that the scheduler takes."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from typing import Any

_DAY_TIME = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?")
_DELAY = re.compile(r"\+\s*(\d+(?:\.\d+)?)\s*([smhdw])", re.IGNORECASE)
_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_LONGEST = dt.timedelta(days=10 * 365)
_EXAMPLES = "22:00, +2h, tomorrow or 2026-07-30T22:00"


class BadTime(ValueError):  # noqa: N818  named for what it is
    """Not a time at which a task could begin."""


def begin_instant(given: str | dt.datetime, now: dt.datetime | None = None) -> str:
    """RFC 3339. Without an offset, times are of this machine's time zone; a time of day is the next one."""
    now = (now or dt.datetime.now(dt.UTC)).astimezone()
    moment = given if isinstance(given, dt.datetime) else _moment(given.strip(), now)
    moment = moment if moment.tzinfo else moment.astimezone()
    if moment - now > _LONGEST:
        raise BadTime(f"{given} is more than ten years ahead")
    return moment.astimezone(dt.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def with_begin_time(task: Mapping[str, Any]) -> Mapping[str, Any]:
    given = task.get("begin_at")
    return task if given is None else {**task, "begin_at": begin_instant(given)}


def _moment(text: str, now: dt.datetime) -> dt.datetime:
    try:
        if delay := _DELAY.fullmatch(text):
            return now + dt.timedelta(seconds=float(delay[1]) * _SECONDS[delay[2].lower()])
        if clock := _DAY_TIME.fullmatch(text):
            hour, minute, second = (int(part or 0) for part in clock.groups())
            return _next_at(dt.time(hour, minute, second), now)
        if text == "tomorrow":
            return _on(now.date() + dt.timedelta(days=1), dt.time())
        return dt.datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise BadTime(f"{text!r} is not a time; write for example {_EXAMPLES}") from None


def _next_at(time: dt.time, now: dt.datetime) -> dt.datetime:
    today = _on(now.date(), time)
    return today if today > now else _on(now.date() + dt.timedelta(days=1), time)


def _on(day: dt.date, time: dt.time) -> dt.datetime:
    """In the local zone with the offset of that day: a change of daylight saving time may lie between."""
    return dt.datetime.combine(day, time).astimezone()
