"""Begin time, signal and grace of a submitted task."""

from __future__ import annotations

import pytest

from unit.rest.test_requests import detail_of, refusal, task


def test_signal_grace_and_begin_time_are_normalised() -> None:
    spec = task(
        signal="sigusr1@300", grace_seconds=60, begin_at="2026-07-30T22:00:00+02:00", timeout_seconds=3600
    )
    assert (detail_of(spec).signal, detail_of(spec).grace_ms) == ((10, 300_000), 60_000)
    assert spec.begins_ms == 1_785_441_600_000
    assert detail_of(task(signal="12")).signal == (12, 60_000)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"signal": "KILL@3"}, "signal: Expected a signal that programs can handle"),
        ({"signal": "USR1@x"}, "signal: Expected a signal"),
        ({"signal": "USR9@5"}, "signal: Expected a signal"),
        ({"signal": "USR1@0"}, "signal: Expected a signal"),
        ({"signal": 10}, "signal: Expected a signal"),
        (
            {"signal": "USR1@90", "timeout_seconds": 60},
            "fewer seconds than the time limit of 60 s, got USR1@90",
        ),
        ({"grace_seconds": 0}, "grace_seconds: Expected a number of seconds from 1"),
        ({"begin_at": "22:00"}, "begin_at: Expected a time like 2026-07-30T22:00:00Z"),
        ({"begin_at": 5}, "begin_at: Expected a time"),
        (
            {"command": None, "allocation": True, "grace_seconds": 60},
            "grace_seconds: An allocation runs nothing",
        ),
    ],
)
def test_signals_and_times_that_cannot_be(fields: dict[str, object], words: str) -> None:
    assert words in refusal(**fields).detail
