"""The writer and its failures: a full disk, a file of another version, a damaged file, a deleted file.

None of them ends the follower.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

from dgpu.service.sqlite_files import FileUnusable, names_of, remove_leftovers
from dgpu.service.telemetry.file import set_aside
from dgpu.service.telemetry.tiers import Batch
from dgpu.service.telemetry.writer import TelemetryWriter

_SAY_EVERY_MS = 600_000  # for the same problem


class TelemetryStore:
    def __init__(self, path: Path, *, max_bytes: int, max_age_ms: int, say: Callable[[str], None]) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._max_age_ms = max_age_ms
        self._say = say
        self._said: tuple[str, int] = ("", 0)
        self._now = 0
        self._writer: TelemetryWriter | None = None
        self._names: dict[str, tuple[int, int]] = {}  # of the files that the writer has open

    @property
    def busy(self) -> bool:
        return self._writer is not None and self._writer.busy

    def take(self, batch: Batch) -> None:
        self._now = batch.at
        self._try(lambda writer: writer.take(batch))

    def step(self) -> None:
        if self.busy:
            self._try(TelemetryWriter.step)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _try(self, work: Callable[[TelemetryWriter], None]) -> None:
        try:
            self._leave_if_gone()
            if self._writer is None:
                self._writer = self._opened()
            work(self._writer)
        except (sqlite3.OperationalError, OSError) as error:
            self._complain(f"telemetry: {error}")
        except sqlite3.DatabaseError as error:
            self.close()
            self._begin_anew(str(error))

    def _leave_if_gone(self) -> None:
        """Data written to a deleted file is lost, and SQLite does not notice."""
        if self._writer is None:
            return
        there = names_of(self._path).get("")
        if there is not None and there == self._names.get(""):
            return
        names = self._names
        self.close()
        remove_leftovers(self._path, names)
        if there is None:
            self._complain(f"{self._path.name} was deleted; a new one is started, without the old data")
        else:
            self._complain(f"{self._path.name} was replaced; the new file is used from now on")

    def _opened(self) -> TelemetryWriter:
        try:
            return self._open()
        except FileUnusable as error:
            self._begin_anew(str(error))
            return self._open()

    def _open(self) -> TelemetryWriter:
        writer = TelemetryWriter(self._path, max_bytes=self._max_bytes, max_age_ms=self._max_age_ms)
        self._names = names_of(self._path)
        return writer

    def _begin_anew(self, why: str) -> None:
        aside = set_aside(self._path)
        self._complain(
            f"{self._path.name} cannot be used ({why}); it is now {aside.name}, a new one is started"
        )

    def _complain(self, text: str) -> None:
        said, at = self._said
        if text != said or self._now - at >= _SAY_EVERY_MS:
            self._said = (text, self._now)
            self._say(text)
