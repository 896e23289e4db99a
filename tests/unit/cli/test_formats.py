"""Numbers and times as people read them."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta, timezone

import pytest

from dgpu.cli import formats
from dgpu.cli.output import Column, fitted, plain_table


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, ""),
        (-3, "0.0s"),
        (0.44, "0.4s"),
        (9.94, "9.9s"),
        (9.96, "10s"),
        (59.6, "1m00s"),
        (125, "2m05s"),
        (3_599.6, "1h00m"),
        (7_800, "2h10m"),
        (90_000, "1d01h"),
    ],
)
def test_durations_have_two_units_at_most(seconds, text):
    assert formats.duration(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "none"), (0, "none"), (90, "90s"), (900, "15m"), (86_400, "1d")]
)
def test_a_limit_reads_as_one_would_type_it(seconds, text):
    assert formats.limit(seconds) == text


@pytest.mark.parametrize(
    ("megabytes", "text"), [(None, ""), (512, "512M"), (8_192, "8G"), (11_264, "11G"), (1_500, "1.5G")]
)
def test_memory_is_short(megabytes, text):
    assert formats.memory(megabytes) == text


def test_a_time_of_another_day_shows_the_day():
    now = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
    assert formats.clock("2026-05-04T11:59:00.000Z", now).count(":") == 2
    assert formats.clock("2026-05-01T11:59:00.000Z", now).startswith("2026-05-01")
    assert formats.clock("nonsense", now) == ""


def test_control_characters_never_reach_the_terminal():
    """A task's name is chosen by anybody; an escape sequence in it must not clear a colleague's screen."""
    assert formats.one_line("a\x1b[2Jb\nc") == "a?[2Jb?c"


def test_long_lists_are_cut_and_say_how_much_is_missing():
    assert formats.listed(["a", "b"], 3) == "a, b"
    assert formats.listed(["a", "b", "c", "d"], 2) == "a, b and 2 more"


COLUMNS = (
    Column("ID", lambda row: row["id"]),
    Column("NUMBER", lambda row: row["number"], right=True),
    Column("TEXT", lambda row: row["text"], stretches=True),
)


def test_a_table_in_a_pipe_is_aligned_and_never_cut():
    table = plain_table([["task-1", "5", "x" * 300], ["task-22", "1234567", "y"]], COLUMNS)
    header, first, second = table.splitlines()
    assert header == "ID        NUMBER  TEXT"
    assert first == f"task-1         5  {'x' * 300}"
    assert second == "task-22  1234567  y"


def test_on_a_narrow_terminal_the_columns_that_stretch_give_way():
    assert fitted([7, 7, 300], COLUMNS, 80) == [7, 7, 62]
    assert fitted([7, 7, 20], COLUMNS, 80) == [7, 7, 20]
    assert fitted([7, 7, 300], COLUMNS, 10) == [7, 7, 12]


def test_one_very_long_text_does_not_pad_the_other_lines():
    columns = (Column("ID", str), Column("NAME", str, stretches=True), Column("STATUS", str))
    long, short = "x" * 100_000, "short"
    lines = plain_table([["1", long, "running"], ["2", short, "pending"]], columns).splitlines()
    assert long in lines[1]
    assert all(len(line) < 200 for line in (lines[0], lines[2]))


def test_a_time_without_a_zone_is_in_ours(monkeypatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Shanghai")
    time.tzset()
    try:
        assert formats.in_our_zone("2026-11-16T08:50") == "2026-11-16T08:50:00+08:00"
        assert formats.in_our_zone("2026-11-16") == "2026-11-16T00:00:00+08:00"
        assert [formats.in_our_zone(text) for text in ("2026-11-16T08:50Z", "6h", "now", "tomorrow")] == [
            "2026-11-16T08:50Z",
            "6h",
            "now",
            "tomorrow",
        ]
        noon = datetime(2026, 11, 18, 12, 0, tzinfo=timezone(timedelta(hours=8)))
        assert formats.in_our_zone("9:05", noon) == "2026-11-18T09:05:00+08:00"
        assert formats.in_our_zone("12:00:01", noon) == "2026-11-17T12:00:01+08:00", (
            "the last one was yesterday"
        )
        assert formats.in_our_zone("25:00", noon) == "25:00"
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_period_over_several_days_names_the_day_of_its_end() -> None:
    now = datetime(2026, 11, 18, 15, 0, tzinfo=UTC)
    today, before = now.isoformat(), (now - timedelta(days=30)).isoformat()
    assert f" to today {formats.clock(today, now)}" in formats.period(before, today, now)
    assert "today" not in formats.period(today, today, now)
    assert "today" not in formats.period(before, before, now)
