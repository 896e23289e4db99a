"""The telemetry file: chunks, roll-ups, what is kept and what goes, and files that cannot be used."""

from __future__ import annotations

import sqlite3
import stat

import pytest

from dgpu.service.telemetry.file import TELEMETRY_NAME
from dgpu.service.telemetry.reader import Span, Telemetry, TelemetryAway
from dgpu.service.telemetry.spans import span_of
from dgpu.service.telemetry.store import TelemetryStore
from dgpu.service.telemetry.tiers import DAY_MS, MINUTES, RAW, TENS
from dgpu.service.telemetry.writer import TelemetryWriter

from .feeding import HOUR_MS, MIDNIGHT, batch, feed, tidy


@pytest.fixture
def path(tmp_path):
    return tmp_path / TELEMETRY_NAME


@pytest.fixture
def writer(path):
    made = TelemetryWriter(path)
    yield made
    made.close()


def loads(path, since, until, step_ms=RAW.step_ms, *, gpu="GPU-0", highest=False):
    reader = Telemetry(path)
    (series,) = reader.gpus([gpu])
    points = reader.read_gpus([series.number], Span(since=since, until=until, step_ms=step_ms))
    reader.close()
    found = points[series.number]
    return (found.highest if highest else found.mean)["utilization_percent"]


def rows(path, table):
    with sqlite3.connect(path) as connection:
        return connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]


def test_a_batch_can_be_read_at_once_and_a_chunk_is_made_when_its_time_is_over(path, writer):
    feed(writer, MIDNIGHT, MIDNIGHT + RAW.window_ms)
    assert (rows(path, "open"), rows(path, "raw")) == (90, 0)
    assert loads(path, MIDNIGHT, MIDNIGHT + RAW.window_ms) == [50.0] * 90

    feed(writer, MIDNIGHT + RAW.window_ms, MIDNIGHT + RAW.window_ms + 20_000)
    assert (rows(path, "open"), rows(path, "raw")) == (2, 2)  # one chunk for the card, one for the cluster
    assert loads(path, MIDNIGHT, MIDNIGHT + RAW.window_ms + 30_000) == [50.0] * 92 + [None]


def test_only_the_scheduler_s_user_can_read_the_file(path, writer):
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_gaps_and_numbers_that_a_card_does_not_tell_stay_missing(path, writer):
    def load_at(at):
        minute = (at - MIDNIGHT) // 60_000
        return ... if minute == 3 else None if minute == 5 else 40

    feed(writer, MIDNIGHT, MIDNIGHT + RAW.window_ms + 10_000, load_at)
    curve = loads(path, MIDNIGHT, MIDNIGHT + RAW.window_ms, 60_000)
    assert curve == [40.0] * 3 + [None, 40.0, None] + [40.0] * 9
    reader = Telemetry(path)
    (series,) = reader.gpus(["GPU-0"])
    points = reader.read_gpus([series.number], Span(since=MIDNIGHT, until=MIDNIGHT + 60_000, step_ms=10_000))
    assert points[series.number].mean["power_w"] == [None] * 6


def test_roll_ups_hold_the_mean_and_the_highest(path, writer):
    # in every minute once 80, once 20
    load_at = lambda at: 80 if at % 60_000 == 0 else 20  # noqa: E731
    feed(writer, MIDNIGHT, MIDNIGHT + DAY_MS + 10_000, load_at, every_ms=30_000)
    assert (rows(path, "minutes"), rows(path, "tens")) == (2 * 4, 2)
    day = (path, MIDNIGHT, MIDNIGHT + DAY_MS)
    assert loads(*day, 60_000) == [50.0] * 1_440
    assert loads(*day, 60_000, highest=True) == [80.0] * 1_440
    assert loads(*day, 600_000) == [50.0] * 144
    assert loads(*day, 3_600_000, highest=True) == [80.0] * 24


def test_a_chart_across_all_tiers_has_no_seam(path, writer):
    """Ten minutes from the day that is rolled up, minutes from the morning, chunks, and the batches of now."""
    until = MIDNIGHT + DAY_MS + 7 * HOUR_MS + 20 * 60_000
    feed(writer, MIDNIGHT, until, lambda at: (at - MIDNIGHT) // HOUR_MS, every_ms=60_000)
    hours = loads(path, MIDNIGHT, MIDNIGHT + DAY_MS + 8 * HOUR_MS, HOUR_MS)
    assert hours == [float(hour) for hour in range(32)]


def test_each_tier_is_kept_for_its_time_and_no_longer(path, writer):
    for day in range(9):
        for hour in range(0, 24, 3):
            begin = MIDNIGHT + day * DAY_MS + hour * HOUR_MS
            feed(writer, begin, begin + 30_000)
    with sqlite3.connect(path) as connection:
        oldest = {
            tier.table: connection.execute(f"SELECT min(start) FROM {tier.table}").fetchone()[0]
            for tier in (RAW, MINUTES, TENS)
        }
    now = MIDNIGHT + 8 * DAY_MS + 21 * HOUR_MS
    for tier in (RAW, MINUTES):
        assert now - tier.keep_ms - 2 * tier.window_ms <= oldest[tier.table] <= now - tier.keep_ms
    assert oldest[TENS.table] == MIDNIGHT
    assert loads(path, MIDNIGHT, MIDNIGHT + HOUR_MS, HOUR_MS) == [50.0]


def test_the_file_stays_within_its_bound_and_forgets_the_oldest(path):
    bound = 512 << 10
    writer = TelemetryWriter(path, max_bytes=bound)
    noise = 7
    for point in range(800):
        at = MIDNIGHT + point * 60_000
        values = []
        for _ in range(60):
            noise = (noise * 1_103_515_245 + 12_345) % (1 << 31)
            values.append(noise % 101)
        writer.take(batch(at, *values))
        tidy(writer)
        assert path.stat().st_size <= bound
    last = MIDNIGHT + 799 * 60_000
    writer.close()
    assert loads(path, last, last + 60_000, 60_000) != [None]
    assert loads(path, MIDNIGHT, MIDNIGHT + HOUR_MS) == [None] * 360  # the finest goes first


def test_a_writer_that_begins_again_goes_on_with_the_open_batches(path):
    first = TelemetryWriter(path)
    feed(first, MIDNIGHT, MIDNIGHT + 5 * 60_000)
    first.close()
    second = TelemetryWriter(path)
    feed(second, MIDNIGHT + 5 * 60_000, MIDNIGHT + RAW.window_ms + 10_000)
    second.close()
    assert loads(path, MIDNIGHT, MIDNIGHT + RAW.window_ms) == [50.0] * 90


def test_a_crash_between_the_chunks_of_a_window_loses_and_doubles_nothing(path):
    first = TelemetryWriter(path)
    for at in range(MIDNIGHT, MIDNIGHT + RAW.window_ms, RAW.step_ms):
        first.take(batch(at, *range(80)))
        tidy(first)
    first.take(batch(MIDNIGHT + RAW.window_ms, *range(80)))
    first.step()  # some of the cards have their chunk, none of the batches has gone
    assert 0 < rows(path, "raw") < 80
    first.close()
    assert loads(path, MIDNIGHT, MIDNIGHT + RAW.window_ms, gpu="GPU-79") == [79.0] * 90

    second = TelemetryWriter(path)
    second.take(batch(MIDNIGHT + RAW.window_ms + RAW.step_ms, *range(80)))
    tidy(second)
    second.close()
    assert rows(path, "raw") == 81
    for gpu in (0, 79):
        assert loads(path, MIDNIGHT, MIDNIGHT + RAW.window_ms, gpu=f"GPU-{gpu}") == [float(gpu)] * 90


def test_time_that_goes_back_changes_nothing_that_is_written(path, writer):
    feed(writer, MIDNIGHT, MIDNIGHT + RAW.window_ms + 10_000)
    writer.take(batch(MIDNIGHT + 10_000, 99))
    assert loads(path, MIDNIGHT, MIDNIGHT + 30_000) == [50.0] * 3


def store(path, said):
    return TelemetryStore(path, max_bytes=1 << 30, max_age_ms=91 * DAY_MS, say=said.append)


@pytest.mark.parametrize(
    "content", [b"this is no database at all, and longer than a header of one" * 50, b"SQL"]
)
def test_a_damaged_file_is_set_aside_and_said(path, content):
    path.write_bytes(content)
    said = []
    keeping = store(path, said)
    keeping.take(batch(MIDNIGHT, 10))
    keeping.close()
    assert loads(path, MIDNIGHT, MIDNIGHT + 10_000) == [10.0]
    assert path.with_name("telemetry.sqlite.unusable").read_bytes() == content
    assert len(said) == 1
    assert "telemetry.sqlite.unusable" in said[0]


def test_a_file_of_another_version_is_set_aside(path):
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    said = []
    keeping = store(path, said)
    keeping.take(batch(MIDNIGHT, 10))
    keeping.close()
    assert "version 99" in said[0]
    assert loads(path, MIDNIGHT, MIDNIGHT + 10_000) == [10.0]


def test_damage_that_shows_later_costs_the_file_and_not_the_follower(path):
    said = []
    keeping = store(path, said)
    for point in range(200):
        keeping.take(batch(MIDNIGHT + point * 10_000, *range(50)))
        keeping.step()
    keeping.close()
    with path.open("r+b") as file:  # pages of the tables, not the head
        file.seek(4_096)
        file.write(b"\xff" * (path.stat().st_size - 4_096))
    keeping = store(path, said)
    for point in range(200, 203):
        keeping.take(batch(MIDNIGHT + point * 10_000, *range(50)))
        while keeping.busy:
            keeping.step()
    keeping.close()
    assert said
    assert loads(path, MIDNIGHT + 2_020_000, MIDNIGHT + 2_030_000) == [0.0]


@pytest.mark.parametrize("gone", [[""], ["", "-wal", "-shm"]])
def test_a_file_that_was_deleted_is_begun_anew_and_said(path, gone):
    said = []
    keeping = store(path, said)
    keeping.take(batch(MIDNIGHT, 10))
    reader = Telemetry(path)  # holds on to the old one
    assert reader.gpus(["GPU-0"])
    for suffix in gone:
        path.with_name(path.name + suffix).unlink()
    for point in (1, 2):
        keeping.take(batch(MIDNIGHT + point * 10_000, 10 + point))
    assert loads(path, MIDNIGHT, MIDNIGHT + 30_000) == [None, 11.0, 12.0]
    assert reader.gpus(["GPU-0"])
    assert [text for text in said if "was deleted" in text] == said
    assert len(said) == 1
    keeping.close()
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_a_file_that_was_replaced_is_gone_on_with(path):
    other = path.with_name("saved.sqlite")
    saved = store(other, [])
    saved.take(batch(MIDNIGHT - 10_000, 70, 71))
    saved.close()
    said = []
    keeping = store(path, said)
    keeping.take(batch(MIDNIGHT, 10))
    other.replace(path)  # the log of the one before still lies beside it
    keeping.take(batch(MIDNIGHT + 10_000, 20))
    keeping.close()
    assert loads(path, MIDNIGHT - 10_000, MIDNIGHT + 20_000) == [70.0, None, 20.0]
    assert len(said) == 1
    assert "was replaced" in said[0]
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_a_reader_says_that_a_damaged_file_cannot_be_read(path):
    path.write_bytes(b"x" * 8_192)
    with pytest.raises(TelemetryAway):
        Telemetry(path).gpus(["GPU-0"])


def test_a_file_that_is_not_there_yet_is_empty(path):
    assert Telemetry(path).gpus(["GPU-0"]) == []
    points = Telemetry(path).read_cluster(Span(since=MIDNIGHT, until=MIDNIGHT + 20_000, step_ms=10_000))
    assert points.mean["gpus"] == [None, None]


@pytest.mark.parametrize(
    ("length_ms", "step_ms"),
    [(HOUR_MS, 10_000), (DAY_MS, 120_000), (7 * DAY_MS, 1_200_000), (90 * DAY_MS, 10_800_000), (1, 10_000)],
)
def test_the_step_keeps_a_chart_to_a_thousand_points(length_ms, step_ms):
    now = MIDNIGHT + 400 * DAY_MS + 12_345
    span = span_of(now - length_ms, now, now=now)
    assert span.step_ms == step_ms
    assert span.since <= now - length_ms < now <= span.until
    assert span.count <= 1_001


def test_a_fine_step_of_long_ago_becomes_what_is_kept():
    now = MIDNIGHT + 400 * DAY_MS
    assert span_of(now - 2 * DAY_MS, now - 2 * DAY_MS + HOUR_MS, now=now, step_ms=10_000).step_ms == 60_000
    assert span_of(now - 9 * DAY_MS, now - 9 * DAY_MS + HOUR_MS, now=now, step_ms=10_000).step_ms == 600_000


def test_a_step_that_is_too_fine_for_its_range_is_refused_with_one_that_is_not():
    with pytest.raises(ValueError, match="at least 580 s"):
        span_of(MIDNIGHT, MIDNIGHT + 10 * DAY_MS, now=MIDNIGHT + 10 * DAY_MS, step_ms=10_000)
