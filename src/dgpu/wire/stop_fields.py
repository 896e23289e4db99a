"""Fields of a submitted task about its begin and its end: begin time, signal, grace."""

from __future__ import annotations

import datetime as dt
import signal
from collections.abc import Mapping
from typing import Any

from dgpu.wire.fields import MAX_TIMEOUT_SECONDS, Unacceptable

MAX_GRACE_SECONDS = 86_400  # the operator sets a lower one
DEFAULT_SIGNAL_SECONDS = 60


def misfit(values: Mapping[str, Any], detail: Mapping[str, Any]) -> tuple[str, str] | None:
    """Rules between fields: the field that does not fit the others, and why."""
    for name, target in (("signal", "signal"), ("grace_seconds", "grace_ms")):
        if values.get("allocation") and detail.get(target):
            return name, "An allocation runs nothing; leave it out."
    limit_ms, asked = values.get("timeout_ms"), detail.get("signal", ())
    if limit_ms and asked and asked[1] >= limit_ms:
        expected = f"Expected fewer seconds than the time limit of {limit_ms / 1000:g} s"
        return "signal", f"{expected}, got {signal_text(asked)}."
    return None


def grace_ms(value: Any) -> int:
    if type(value) in {int, float} and 1 <= value <= MAX_GRACE_SECONDS:
        milli: int = round(value * 1000)
        return milli
    raise Unacceptable(f"a number of seconds from 1 to {MAX_GRACE_SECONDS}")


def begins_ms(value: Any) -> int:
    """A time of the wall clock, in ms."""
    expected = "a time like 2026-07-30T22:00:00Z, or with an offset like +02:00"
    if type(value) is not str or not 0 < len(value) <= 64:
        raise Unacceptable(expected)
    try:
        moment = dt.datetime.fromisoformat(value)
        wall_ms = round((moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)).timestamp() * 1_000)
    except (ValueError, OverflowError):
        raise Unacceptable(expected) from None
    return max(0, wall_ms)


def signal_before(value: Any) -> tuple[int, ...]:
    """USR1@300, USR1, 10@300: the number of the signal, and ms before the time limit. Empty: none."""
    if value == "":
        return ()
    name, _, seconds = value.partition("@") if type(value) is str else ("", "", "")
    number = _signal_number(name.strip().upper())
    before = seconds.strip() or str(DEFAULT_SIGNAL_SECONDS)
    if number and before.isdecimal() and 0 < len(before) <= 9 and 0 < int(before) <= MAX_TIMEOUT_SECONDS:
        return (number, int(before) * 1000)
    raise Unacceptable("a signal that programs can handle and seconds before the time limit, like USR1@300")


def signal_text(value: tuple[int, ...]) -> str:
    return f"{signal.Signals(value[0]).name.removeprefix('SIG')}@{value[1] // 1000}" if value else ""


_NOT_FOR_TASKS = frozenset({signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD})


def _signal_number(name: str) -> int:
    """0: no signal of this name or number, or one that no program can handle."""
    try:
        number = (
            signal.Signals(int(name))
            if name.isdecimal()
            else signal.Signals[f"SIG{name.removeprefix('SIG')}"]
        )
    except (KeyError, ValueError):
        return 0
    return 0 if number in _NOT_FOR_TASKS else int(number)
