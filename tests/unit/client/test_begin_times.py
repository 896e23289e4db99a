"""Begin times as people write them, as the exact time that the scheduler takes."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterator

import pytest

from dgpu.client.begin_times import BadTime, begin_instant

NOW = dt.datetime(2026, 7, 30, 15, 30, tzinfo=dt.UTC)


@pytest.fixture(autouse=True)
def zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("given", "instant"),
    [
        ("22:00", "2026-07-30T20:00:00.000Z"),
        ("17:30", "2026-07-31T15:30:00.000Z"),
        ("9:05:10", "2026-07-31T07:05:10.000Z"),
        ("+2h", "2026-07-30T17:30:00.000Z"),
        ("+1.5d", "2026-08-01T03:30:00.000Z"),
        ("tomorrow", "2026-07-30T22:00:00.000Z"),
        ("2026-12-24T08:00", "2026-12-24T07:00:00.000Z"),
        ("2026-12-24T08:00-05:00", "2026-12-24T13:00:00.000Z"),
        (dt.datetime(2026, 12, 24, 8, tzinfo=dt.UTC), "2026-12-24T08:00:00.000Z"),
    ],
)
def test_times_are_of_the_zone_of_this_machine(given: str | dt.datetime, instant: str) -> None:
    assert begin_instant(given, NOW) == instant


def test_a_time_of_day_after_the_clocks_change_is_the_one_that_people_see() -> None:
    before = dt.datetime(2026, 10, 24, 21, tzinfo=dt.UTC)  # 23:00 in summer; the clocks go back at 3:00
    assert begin_instant("22:00", before) == "2026-10-25T21:00:00.000Z"


@pytest.mark.parametrize("text", ["25:00", "2h", "+2y", "", "soon", "2026-02-30", "+999999w"])
def test_what_is_no_time_shows_examples(text: str) -> None:
    with pytest.raises(BadTime, match=r"22:00|ten years"):
        begin_instant(text, NOW)
