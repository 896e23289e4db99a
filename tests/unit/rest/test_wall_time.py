"""Times that people see and type."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dgpu.core.model.wall_span import WallSpan
from dgpu.wire.answers import instant
from dgpu.wire.time_range import moment_ms
from dgpu.wire.wall_time import SHOWN, WallTime, words_of_ms

DAY_MS = 86_400_000


def span(wall_offset_ms: int) -> WallSpan:
    return WallSpan(boot_id="b", boot_offset_ms=0, wall_offset_ms=wall_offset_ms)


@pytest.fixture
def shown() -> Iterator[WallTime]:
    yield SHOWN
    SHOWN.follow({})


def test_each_time_is_shown_as_the_wall_clock_of_its_boot(shown: WallTime) -> None:
    shown.follow({100 * DAY_MS: span(-40 * DAY_MS), 200 * DAY_MS: span(3_000)})
    assert instant(50 * DAY_MS) == "1970-02-20T00:00:00.000Z", "before the first span, as it is"
    assert instant(100 * DAY_MS) == "1970-03-02T00:00:00.000Z"
    assert instant(200 * DAY_MS) == "1970-07-20T00:00:03.000Z"


def test_a_time_that_is_typed_is_found_again(shown: WallTime) -> None:
    shown.follow({100 * DAY_MS: span(-40 * DAY_MS), 200 * DAY_MS: span(3_000)})
    for at in (130 * DAY_MS, 199 * DAY_MS, 200 * DAY_MS, 300 * DAY_MS):
        assert moment_ms(instant(at), 400 * DAY_MS) == at
    assert moment_ms("2d", 300 * DAY_MS) == 298 * DAY_MS
    assert moment_ms("now", 300 * DAY_MS) == 300 * DAY_MS
    assert moment_ms("1970-07-19T12:00:00Z", 300 * DAY_MS) == 200 * DAY_MS, "between two boots"


@pytest.mark.parametrize("offset_ms", [-(10**15), 10**15])
def test_a_clock_beyond_the_calendar_is_shown_as_its_end(shown: WallTime, offset_ms: int) -> None:
    shown.follow({1: span(offset_ms)})
    assert instant(5) in {"1000-01-01T00:00:00.000Z", "9999-12-31T23:59:59.999Z"}


def test_lengths_in_words() -> None:
    assert [words_of_ms(ms) for ms in (5_000, 3_600_000, 2 * 3_600_000, 40 * DAY_MS, 3_650 * DAY_MS)] == [
        "5 seconds",
        "60 minutes",
        "2 hours",
        "40 days",
        "3650 days",
    ]
