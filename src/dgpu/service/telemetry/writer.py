"""Fills the telemetry file, in the follower. Works in small pieces, so that the replay of the journal does not wait.

A batch is committed on arrival, so a killed follower loses at most the batch in the pipe. The file is synced once a
minute, so a power cut loses about a minute. At the end of a quarter of an hour, its batches become one chunk per GPU.
When the chunks fill a window of the next tier, they are rolled up. Repeating a piece after a crash gives the same
result.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Generator, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from dgpu.service.sqlite_files import transaction
from dgpu.service.telemetry.batches import Packed, missing_of, pack, unpack
from dgpu.service.telemetry.codec import Damaged, decode, encode
from dgpu.service.telemetry.file import PAGE_BYTES, open_for_writing
from dgpu.service.telemetry.rolling import rolled
from dgpu.service.telemetry.tiers import (
    CLUSTER,
    CLUSTER_COLUMNS,
    GPU_COLUMNS,
    MAX_AGE_MS,
    MAX_BYTES,
    RAW,
    TIERS,
    Batch,
    Tier,
)

SYNC_EVERY_MS = 60_000
_SERIES_A_STEP = 20
_ROLLED_A_STEP = 2  # each consists of two dozen chunks
_ROWS_A_STEP = 1_000
_ROWS_SHED = 100
_MAX_SHEDDINGS = 50
_FULL_PART = 0.9  # trimming begins here, so that the limit is never reached
_MAX_OPEN = 4 * RAW.points  # batches in memory while the disk accepts no writes
_MAX_SERIES = 100_000  # GPUs seen within the retention
_Open = tuple[Packed, Packed]


class TelemetryWriter:
    """Every method raises sqlite3.Error; unwritten data is tried again with the next piece."""

    def __init__(
        self,
        path: Path,
        *,
        max_bytes: int = MAX_BYTES,
        max_age_ms: int = MAX_AGE_MS,
        sync_every_ms: int = SYNC_EVERY_MS,
    ) -> None:
        self._sync_every_ms = sync_every_ms
        self._max_bytes = max_bytes
        self._max_age_ms = max_age_ms
        self._connection = open_for_writing(path, max_bytes=max_bytes)
        self._series: dict[str, tuple[int, str]] = {
            gpu: (number, node)
            for number, gpu, node in self._connection.execute("SELECT number, gpu, node FROM series")
        }
        self._open: dict[int, _Open] = {}
        self._load_open()
        self._closed_upto = self._meta("closed_upto")
        self._last_at = max(self._open, default=self._closed_upto)
        self._synced_at = self._last_at
        self._work: Generator[None, None, None] | None = None

    @property
    def busy(self) -> bool:
        return self._work is not None

    def take(self, batch: Batch) -> None:
        """Ignores a batch that is not newer than the last one."""
        if batch.at <= self._last_at or batch.at < self._closed_upto:
            return
        self._last_at = batch.at
        window = RAW.window_of(batch.at)
        # Checked before the batch is stored: a window ends even if the disk accepts no writes now.
        if self._work is None and (any(at < window for at in self._open) or self._meta("trim") < window):
            self._work = self._tidy(window)
        gpus, cluster = self._packed(batch)
        self._open[batch.at] = (
            unpack(gpus, len(GPU_COLUMNS)),
            unpack(cluster, len(CLUSTER_COLUMNS), "q"),
        )
        while len(self._open) > _MAX_OPEN:
            del self._open[min(self._open)]
        self._write("INSERT OR REPLACE INTO open VALUES (?, ?, ?)", [(batch.at, gpus, cluster)])
        if batch.at - self._synced_at >= self._sync_every_ms:
            self._synced_at = batch.at
            self.settle()

    def step(self) -> None:
        """Does a bounded piece of due work."""
        if self._work is None:
            return
        try:
            next(self._work)
        except StopIteration:
            self._work = None
        except sqlite3.Error:
            self._work = None  # restarted with the next batch
            raise

    def settle(self) -> None:
        self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def close(self) -> None:
        self._work = None
        self._connection.close()

    # Batches

    def _load_open(self) -> None:
        for at, gpus, cluster in self._connection.execute("SELECT at, gpus, cluster FROM open ORDER BY at"):
            with contextlib.suppress(Damaged):
                self._open[at] = (
                    unpack(gpus, len(GPU_COLUMNS)),
                    unpack(cluster, len(CLUSTER_COLUMNS), "q"),
                )

    def _packed(self, batch: Batch) -> tuple[bytes, bytes]:
        numbers = [
            self._number(gpu, node, batch.at) for gpu, node in zip(batch.gpu_ids, batch.node_ids, strict=True)
        ]
        order = sorted(
            (place for place, number in enumerate(numbers) if number), key=lambda place: numbers[place]
        )
        columns = [[column[place] for place in order] for column in batch.columns]
        cluster = [[value] for value in batch.cluster]
        return pack([numbers[place] for place in order], columns), pack([CLUSTER], cluster, "q")

    def _number(self, gpu: str, node: str, at: int) -> int:
        """0: the limit of series is reached."""
        known = self._series.get(gpu)
        if known is None:
            if len(self._series) >= _MAX_SERIES:
                return 0
            cursor = self._connection.execute(
                "INSERT INTO series (gpu, node, seen_at) VALUES (?, ?, ?)", (gpu, node, at)
            )
            known = self._series[gpu] = (int(cursor.lastrowid or 0), node)
        elif known[1] != node:
            self._connection.execute("UPDATE series SET node = ? WHERE number = ?", (node, known[0]))
            known = self._series[gpu] = (known[0], node)
        return known[0]

    # Closing, rolling up, trimming

    def _tidy(self, now_window: int) -> Generator[None, None, None]:
        """All work at the end of a window, in pieces."""
        for window in sorted({RAW.window_of(at) for at in self._open}):
            if window < now_window:
                yield from self._close(window)
        for finer, tier in pairwise(TIERS):
            yield from self._roll_up(finer, tier)
        yield from self._trim()
        self._note(trim=now_window)

    def _close(self, window: int) -> Iterator[None]:
        end = window + RAW.window_ms
        times = [at for at in sorted(self._open) if window <= at < end]
        if window >= self._closed_upto:
            for kind, width, typecode in ((0, len(GPU_COLUMNS), "i"), (1, len(CLUSTER_COLUMNS), "q")):
                batches = {(at - window) // RAW.step_ms: self._open[at][kind] for at in times}
                series = sorted({number for each in batches.values() for number in each.series})
                for part in _parts(series, _SERIES_A_STEP):
                    rows = [
                        (number, window, encode(_chunk(batches, number, width, missing_of(typecode))))
                        for number in part
                    ]
                    self._insert(RAW, rows)
                    yield
        with transaction(self._connection):
            self._connection.execute("DELETE FROM open WHERE at < ?", (end,))
            self._note(closed_upto=max(end, self._closed_upto))
            seen = {number for at in times[-1:] for number in self._open[at][0].series}
            self._connection.executemany(
                "UPDATE series SET seen_at = ? WHERE number = ?", [(end, number) for number in seen]
            )
        self._closed_upto = max(end, self._closed_upto)
        for at in times:
            del self._open[at]
        yield

    def _roll_up(self, finer: Tier, tier: Tier) -> Iterator[None]:
        done_name, finer_name = _upto(tier), _upto(finer)
        while True:
            finer_upto = self._meta(finer_name)
            oldest = self._oldest(finer)
            if oldest is None:
                return
            window = max(self._meta(done_name), tier.window_of(oldest))
            end = window + tier.window_ms
            if end > finer_upto:
                return
            yield from self._roll_window(finer, tier, window)
            self._note(**{done_name: end})

    def _roll_window(self, finer: Tier, tier: Tier, window: int) -> Iterator[None]:
        found = self._connection.execute(
            f"SELECT DISTINCT series FROM {finer.table} WHERE start >= ? AND start < ?",  # noqa: S608 - constant text
            (window, window + tier.window_ms),
        ).fetchall()
        for part in _parts([row[0] for row in found], _ROLLED_A_STEP):
            rows = []
            for number in part:
                columns = self._joined(finer, number, window, tier.window_ms)
                if columns:
                    each = tier.step_ms // finer.step_ms
                    rows.append((number, window, encode(rolled(columns, each, raw=finer is RAW))))
            self._insert(tier, rows)
            yield

    def _joined(self, tier: Tier, series: int, start: int, length_ms: int) -> list[list[int | None]]:
        """The chunks of a series from `start` on, joined; an unreadable chunk is a gap."""
        joined: list[list[int | None]] = []
        rows = self._connection.execute(
            f"SELECT start, body FROM {tier.table} WHERE series = ? AND start >= ? AND start < ?",  # noqa: S608
            (series, start, start + length_ms),
        ).fetchall()
        for chunk_start, body in rows:
            with contextlib.suppress(Damaged):
                columns = decode(body)
                if not joined:
                    joined = [[None] * (length_ms // tier.step_ms) for _ in columns]
                place = (chunk_start - start) // tier.step_ms
                for whole, column in zip(joined, columns, strict=False):
                    whole[place : place + len(column)] = column
        return joined

    def _trim(self) -> Iterator[None]:
        now = self._last_at
        for tier in TIERS:
            keep_ms = min(tier.keep_ms, self._max_age_ms)
            while self._drop_oldest(tier, before=now - keep_ms - tier.window_ms):
                yield
        while self.used_bytes() > self._max_bytes * _FULL_PART:
            if not self._shed(_ROWS_SHED):
                break
            yield
        gone = now - self._max_age_ms - TIERS[-1].window_ms
        self._connection.execute("DELETE FROM series WHERE seen_at < ?", (gone,))
        self._series = {
            gpu: (number, node)
            for number, gpu, node in self._connection.execute("SELECT number, gpu, node FROM series")
        }
        if self._file_bytes() > self._max_bytes:
            self._connection.execute(f"PRAGMA incremental_vacuum({_ROWS_A_STEP})").fetchall()
        yield

    def used_bytes(self) -> int:
        free = self._connection.execute("PRAGMA freelist_count").fetchone()[0]
        return self._file_bytes() - int(free) * PAGE_BYTES

    def _file_bytes(self) -> int:
        return int(self._connection.execute("PRAGMA page_count").fetchone()[0]) * PAGE_BYTES

    def _worn(self, tier: Tier, now: int) -> float:
        """How far back a tier reaches, as a part of its retention: all tiers shrink by the same part."""
        oldest = self._oldest(tier)
        return -1.0 if oldest is None else (now - oldest) / tier.keep_ms

    def _oldest(self, tier: Tier) -> int | None:
        row = self._connection.execute(f"SELECT start FROM {tier.table} ORDER BY id LIMIT 1").fetchone()  # noqa: S608
        return None if row is None else int(row[0])

    def _drop_oldest(self, tier: Tier, *, before: int, most: int = _ROWS_A_STEP) -> bool:
        """Rows are in the order of time."""
        rows = self._connection.execute(
            f"SELECT id, start FROM {tier.table} ORDER BY id LIMIT ?",  # noqa: S608 - constant text
            (most,),
        ).fetchall()
        doomed = [(number,) for number, start in rows if start < before]
        if doomed:
            with transaction(self._connection):
                self._connection.executemany(f"DELETE FROM {tier.table} WHERE id = ?", doomed)  # noqa: S608
        return bool(doomed)

    # The file

    def _insert(self, tier: Tier, rows: Sequence[tuple[int, int, bytes]]) -> None:
        statement = f"INSERT OR REPLACE INTO {tier.table} (series, start, body) VALUES (?, ?, ?)"  # noqa: S608
        self._write(statement, rows)

    def _write(self, statement: str, rows: Sequence[tuple[int | bytes, ...]]) -> None:
        """At the size limit, the oldest rows are deleted."""
        for _ in range(_MAX_SHEDDINGS):
            try:
                with transaction(self._connection):
                    self._connection.executemany(statement, rows)
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_FULL or not self._shed(_ROWS_SHED):
                    raise
            else:
                return

    def _shed(self, most: int = _ROWS_A_STEP) -> bool:
        """Deletes the oldest rows of the tier that reaches furthest back in relation to its retention."""
        tier = max(TIERS, key=lambda each: self._worn(each, self._last_at))
        return self._drop_oldest(tier, before=self._last_at, most=most)

    def _meta(self, name: str) -> int:
        row = self._connection.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
        return int(row[0]) if row else 0

    def _note(self, **values: int) -> None:
        self._connection.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", values.items())


def _parts(numbers: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    for start in range(0, len(numbers), size):
        yield numbers[start : start + size]


def _upto(tier: Tier) -> str:
    return "closed_upto" if tier is RAW else f"{tier.table}_upto"


def _chunk(batches: dict[int, Packed], series: int, width: int, missing: int) -> list[list[int | None]]:
    """One column after the other, with a value for each point of the window."""
    columns: list[list[int | None]] = [[None] * RAW.points for _ in range(width)]
    for point, batch in batches.items():
        place = batch.place_of(series)
        if place is not None:
            for column, value in zip(columns, batch.row(place), strict=True):
                if value != missing:
                    column[point] = value
    return columns
