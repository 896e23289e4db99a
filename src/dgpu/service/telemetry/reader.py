"""Reads the telemetry file, from any thread, while the follower writes it."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from dgpu.service.sqlite_files import open_version_to_read
from dgpu.service.telemetry.batches import unpack
from dgpu.service.telemetry.codec import Damaged, decode
from dgpu.service.telemetry.file import TELEMETRY_VERSION
from dgpu.service.telemetry.rolling import Buckets, scaled
from dgpu.service.telemetry.tiers import (
    CLUSTER,
    CLUSTER_COLUMNS,
    GPU_COLUMNS,
    MINUTES,
    RAW,
    TENS,
    TENTHS,
    Tier,
)


class TelemetryAway(Exception):  # noqa: N818 - the name states the failure
    """The file cannot be read now; the text gives the reason."""


class Series(NamedTuple):
    number: int
    gpu_id: str
    node_id: str


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """Buckets of equal length. `since` and `until` are multiples of the step."""

    since: int
    until: int
    step_ms: int

    @property
    def count(self) -> int:
        return (self.until - self.since) // self.step_ms


class Points(msgspec.Struct, frozen=True, kw_only=True):
    """A value for each bucket, by column name; None: unknown."""

    mean: dict[str, list[float | None]]
    highest: dict[str, list[float | None]]


class Telemetry:
    """A file that does not exist yet counts as empty."""

    def __init__(self, path: Path | str) -> None:
        self._path = Path(path)
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._inode = 0

    def gpus(self, gpu_ids: Sequence[str]) -> list[Series]:
        """The known GPUs among these, as far back as series are kept."""
        with self._reading() as connection:
            if connection is None:
                return []
            marks = ", ".join("?" * len(gpu_ids))
            query = f"SELECT number, gpu, node FROM series WHERE gpu IN ({marks})"  # noqa: S608 - question marks
            return [Series(*row) for row in connection.execute(query, tuple(gpu_ids))]

    def gpus_of(self, node_id: str, *, limit: int) -> list[Series]:
        with self._reading() as connection:
            if connection is None:
                return []
            query = "SELECT number, gpu, node FROM series WHERE node = ? ORDER BY number LIMIT ?"
            return [Series(*row) for row in connection.execute(query, (node_id, limit))]

    def read_gpus(self, series: Sequence[int], span: Span) -> dict[int, Points]:
        """All values are from one moment. A series without data in the span has only gaps."""
        with self._reading() as connection:
            gathered = {number: _buckets(span, len(GPU_COLUMNS)) for number in series}
            if connection is not None:
                _gather_chunks(connection, gathered, span)
                _gather_open_gpus(connection, gathered, span)
            return {number: _points(buckets, GPU_COLUMNS) for number, buckets in gathered.items()}

    def read_cluster(self, span: Span) -> Points:
        with self._reading() as connection:
            buckets = _buckets(span, len(CLUSTER_COLUMNS))
            if connection is not None:
                _gather_chunks(connection, {CLUSTER: buckets}, span)
                _gather_open_cluster(connection, buckets, span)
            return _points(buckets, CLUSTER_COLUMNS)

    def close(self) -> None:
        with self._lock:
            self._disconnect()

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection | None]:
        """One transaction: the follower may turn batches into chunks meanwhile, and no value is missed or counted
        twice.
        """
        with self._lock:
            try:
                connection = self._connect()
                if connection is None:
                    yield None
                    return
                connection.execute("BEGIN")
                try:
                    yield connection
                finally:
                    connection.execute("COMMIT")
            except sqlite3.Error as error:
                self._disconnect()
                raise TelemetryAway(str(error)) from error

    def _connect(self) -> sqlite3.Connection | None:
        """A new file may have taken the name: follow the name."""
        try:
            inode = self._path.stat().st_ino
        except FileNotFoundError:
            self._disconnect()
            return None
        if self._connection is not None and inode == self._inode:
            return self._connection
        self._disconnect()
        # None: the file is being created, or about to be moved aside
        connection = open_version_to_read(self._path, TELEMETRY_VERSION, timeout_seconds=2)
        if connection is not None:
            self._connection, self._inode = connection, inode
        return connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _buckets(span: Span, columns: int) -> Buckets:
    return Buckets(start_ms=span.since, step_ms=span.step_ms, count=span.count, columns=columns)


def _points(buckets: Buckets, names: Sequence[str]) -> Points:
    return Points(
        mean={
            name: scaled(buckets.means(column), tenths=name in TENTHS) for column, name in enumerate(names)
        },
        highest={
            name: scaled(buckets.highest[column], tenths=name in TENTHS) for column, name in enumerate(names)
        },
    )


def _gather_chunks(connection: sqlite3.Connection, gathered: dict[int, Buckets], span: Span) -> None:
    """Takes from each tier the values that the coarser tier does not have yet."""
    meta = dict(connection.execute("SELECT name, value FROM meta").fetchall())
    begin = span.since
    for tier, name in ((TENS, "tens_upto"), (MINUTES, "minutes_upto"), (RAW, "closed_upto")):
        if tier.step_ms > span.step_ms:
            continue
        end = min(meta.get(name, 0), span.until)
        if end <= begin:
            continue
        for number, buckets in gathered.items():
            _gather(connection, tier, number, buckets, begin, end)
        begin = end


def _gather(
    connection: sqlite3.Connection, tier: Tier, series: int, buckets: Buckets, begin: int, end: int
) -> None:
    rows = connection.execute(
        f"SELECT start, body FROM {tier.table} WHERE series = ? AND start >= ? AND start < ?",  # noqa: S608
        (series, tier.window_of(begin), end),
    )
    for start, body in rows:
        try:
            columns = decode(body)
        except Damaged:
            continue  # a gap
        first = max(0, (begin - start) // tier.step_ms)  # earlier values came from a coarser tier
        columns = [column[first:] for column in columns]
        half = len(columns) if tier is RAW else len(columns) // 2
        highest = columns if tier is RAW else columns[half:]
        weight = tier.step_ms // RAW.step_ms
        buckets.add(start + first * tier.step_ms, tier.step_ms, columns[:half], highest, weight)


def _gather_open_gpus(connection: sqlite3.Connection, gathered: dict[int, Buckets], span: Span) -> None:
    for at, body in _open(connection, "gpus", span):
        try:
            batch = unpack(body, len(GPU_COLUMNS))
        except Damaged:
            continue
        for number, buckets in gathered.items():
            place = batch.place_of(number)
            if place is not None:
                _add_one(buckets, at, batch.values_at(place))


def _gather_open_cluster(connection: sqlite3.Connection, buckets: Buckets, span: Span) -> None:
    for at, body in _open(connection, "cluster", span):
        with contextlib.suppress(Damaged):
            _add_one(buckets, at, unpack(body, len(CLUSTER_COLUMNS), "q").values_at(0))


def _open(connection: sqlite3.Connection, column: str, span: Span) -> Iterator[tuple[int, Any]]:
    query = f"SELECT at, {column} FROM open WHERE at >= ? AND at < ?"  # noqa: S608 - constant text
    yield from connection.execute(query, (span.since, span.until))


def _add_one(buckets: Buckets, at: int, values: list[int | None]) -> None:
    column = [[value] for value in values]
    buckets.add(at, RAW.step_ms, column, column, 1)
