"""The follower's part in forecasts: makes them after changes, stores predictions, and scores them.

Predictions are not in the journal, so they have a file of their own. The history can be rebuilt from the journal; this
file cannot. Its loss loses only the score.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median_low
from typing import NamedTuple

from dgpu.core import events
from dgpu.core.events import Event
from dgpu.core.foresight.forecast import Prediction, forecast
from dgpu.core.model.ids import TaskId
from dgpu.core.state import ClusterState
from dgpu.service.follower.forecasts import Foretold
from dgpu.service.sqlite_files import (
    FileUnusable,
    names_of,
    open_to_write,
    remove_leftovers,
    transaction,
    use_log,
)

FORECASTS_NAME = "forecasts.sqlite"
_INTERVAL_S = 3.0
_COST_FACTOR = 10  # it rests this many times as long as the forecast took
_MAX_SCORED = 1_000  # the median covers the last ones
_MAX_KEPT = 100_000
_MAX_OF_ONE = 16
_LEAST_MOVE_MS = 10_000  # a prediction is stored again after a move by this and by a tenth of the wait
_SCHEMA = """
CREATE TABLE IF NOT EXISTS predictions (
    task_id INTEGER NOT NULL, made_at INTEGER NOT NULL, p50_at INTEGER NOT NULL, p90_at INTEGER NOT NULL,
    started_at INTEGER, error_ms INTEGER, PRIMARY KEY (task_id, made_at)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS predictions_scored ON predictions (started_at) WHERE started_at IS NOT NULL;
CREATE INDEX IF NOT EXISTS predictions_open ON predictions (task_id) WHERE started_at IS NULL;
"""
_GONE = (events.TaskPlaced, events.GangPlaced, events.TasksCancelled, events.CallsFailed)


class Forecaster:
    """An unusable file does not stop forecasts: they continue without a score, and the file is tried again."""

    def __init__(self, directory: Path, say: Callable[[str], None] = lambda _: None) -> None:
        self._path = directory / FORECASTS_NAME
        self._say = say
        self._connection = _open(self._path)
        self._names = names_of(self._path)  # of the files that the connection has open
        self._open: dict[TaskId, list[_Kept]] = {}  # of waiting tasks
        self._scores: deque[int] = deque(maxlen=_MAX_SCORED)
        self._placed: list[tuple[int, TaskId]] = []
        self._left: list[TaskId] = []
        self._index = -1
        self._had_any = False
        self._due_s = 0.0
        self._load()

    @property
    def due_s(self) -> float:
        return self._due_s

    @property
    def median_error_ms(self) -> int | None:
        return median_low(self._scores) if self._scores else None

    def note(self, event: Event) -> None:
        """Called after the event was applied. Only predicted tasks are considered."""
        if not self._open or not isinstance(event, _GONE):
            return
        if isinstance(event, events.TasksCancelled | events.CallsFailed):
            self._left += [task_id for task_id in event.task_ids if task_id in self._open]
        elif event.task_id in self._open:
            self._placed.append((event.at, event.task_id))

    def lags(self, index: int) -> bool:
        """The state changed since the last forecast."""
        return index != self._index

    def is_due(self, index: int, now_s: float) -> bool:
        return self.lags(index) and now_s >= self._due_s

    def make(self, state: ClusterState, index: int) -> Foretold | None:
        """None: nothing new."""
        began_s = time.monotonic()
        found = forecast(state, state.last_at)
        self._settle(found.predictions, found.at)
        self._index = index
        self._due_s = time.monotonic() + max(_INTERVAL_S, _COST_FACTOR * (time.monotonic() - began_s))
        if not (found.predictions or self._had_any or state.waiting_count):
            return None
        self._had_any = bool(found.predictions)
        return Foretold(
            index=index, at=found.at, predictions=found.predictions, median_error_ms=self.median_error_ms
        )

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # Leaves

    def _settle(self, predictions: Iterable[Prediction], at: int) -> None:
        """Scores started tasks and stores new predictions, in one transaction."""
        scored = []
        for started_at, task_id in self._placed:
            kept_before = self._open.get(task_id, [])
            # A replay contains starts from before the prediction.
            if kept_before and started_at >= kept_before[0].made_at:
                del self._open[task_id]
                self._scores.extend(abs(started_at - each.p50_at) for each in kept_before)
                scored.append((started_at, started_at, task_id))
        left = [(task_id,) for task_id in self._left if self._open.pop(task_id, None) is not None]
        self._placed, self._left = [], []
        kept = []
        for each in predictions:
            before = self._open.setdefault(each.task_id, [])
            if _is_news(before, each, at):
                before.append(_Kept(at, each.p50_at, each.p90_at))
                kept.append((each.task_id, at, each.p50_at, each.p90_at))
        self._write(scored, left, kept)

    def _write(
        self,
        scored: list[tuple[int, int, TaskId]],
        left: list[tuple[TaskId]],
        kept: list[tuple[TaskId, int, int, int]],
    ) -> None:
        if self._is_opened_anew():
            kept = [(task_id, *each) for task_id, several in self._open.items() for each in several]
        if self._connection is None or not (scored or left or kept):
            return
        try:
            _store(self._connection, scored, left, kept)
        except sqlite3.OperationalError:
            pass  # a full disk: the score so far is in memory
        except sqlite3.DatabaseError as error:
            self.close()
            self._path.unlink(missing_ok=True)
            remove_leftovers(self._path, self._names)
            self._say(
                f"{self._path.name} cannot be used ({error}); a new one is started, without the old data"
            )

    def _is_opened_anew(self) -> bool:
        """True if there was no open file, or if it was deleted: SQLite keeps using a file without a name."""
        there = names_of(self._path).get("")
        if self._connection is not None:
            if there == self._names.get(""):
                return False
            self.close()
            remove_leftovers(self._path, self._names)
            self._say(
                f"{self._path.name} was deleted or replaced; it continues with the tasks that still wait"
            )
        self._connection = _open(self._path)
        self._names = names_of(self._path)
        return self._connection is not None

    def _load(self) -> None:
        """Loads the recent scores, and predictions for tasks that still wait."""
        if self._connection is None:
            return
        with contextlib.suppress(sqlite3.Error):
            errors = self._connection.execute(
                "SELECT abs(error_ms) FROM predictions WHERE started_at IS NOT NULL "
                "ORDER BY started_at DESC LIMIT ?",
                (_MAX_SCORED,),
            ).fetchall()
            self._scores.extend(row[0] for row in reversed(errors))
            rows = self._connection.execute(
                "SELECT task_id, made_at, p50_at, p90_at FROM predictions WHERE started_at IS NULL ORDER BY made_at"
            )
            for task_id, *kept in rows:
                self._open.setdefault(TaskId(task_id), []).append(_Kept(*kept))


def _store(
    connection: sqlite3.Connection,
    scored: list[tuple[int, int, TaskId]],
    left: list[tuple[TaskId]],
    kept: list[tuple[TaskId, int, int, int]],
) -> None:
    with transaction(connection):
        connection.executemany(
            "UPDATE predictions SET started_at = ?, error_ms = ? - p50_at "
            "WHERE task_id = ? AND started_at IS NULL",
            scored,
        )
        connection.executemany("DELETE FROM predictions WHERE task_id = ? AND started_at IS NULL", left)
        connection.executemany(
            "INSERT OR REPLACE INTO predictions (task_id, made_at, p50_at, p90_at) VALUES (?, ?, ?, ?)",
            kept,
        )
        connection.execute(
            "DELETE FROM predictions WHERE started_at < (SELECT started_at FROM predictions "
            "WHERE started_at IS NOT NULL ORDER BY started_at DESC LIMIT 1 OFFSET ?)",
            (_MAX_KEPT,),
        )


class _Kept(NamedTuple):
    made_at: int
    p50_at: int
    p90_at: int


def _is_news(before: list[_Kept], now: Prediction, at: int) -> bool:
    if not before:
        return True
    moved = abs(now.p50_at - before[-1].p50_at)
    return len(before) < _MAX_OF_ONE and moved >= _LEAST_MOVE_MS and moved * 10 >= max(0, now.p50_at - at)


def _open(path: Path) -> sqlite3.Connection | None:
    for _ in range(2):
        try:
            return open_to_write(path, _prepare, timeout_seconds=1)
        except sqlite3.OperationalError:
            return None  # a full disk, or a lock
        except FileUnusable:
            path.unlink(missing_ok=True)  # only the score is lost
    return None


def _prepare(connection: sqlite3.Connection) -> None:
    use_log(connection)
    connection.executescript(_SCHEMA)
