"""The follower replays the committed journal and does the writing that the scheduler does not have to do itself.

It writes the snapshots and the history, stores measurements of GPUs, packs old segments, forecasts starts, and answers
what-if questions. It can be killed at any moment: it starts again from the last snapshot and the journal.
"""

from __future__ import annotations

import gc
import sqlite3
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from dgpu.core.apply.table import apply
from dgpu.core.apply.task import packed_key
from dgpu.core.digest import digest
from dgpu.core.events import CallReturned, TasksSubmitted, WallClockRead
from dgpu.core.state import ClusterState
from dgpu.journal.archive import earliest_state, latest_state, pack_covered, prune
from dgpu.journal.engine import StateDigest
from dgpu.journal.errors import LostTail
from dgpu.journal.journal import Group, collector_off
from dgpu.journal.key_files import KeyFiles
from dgpu.journal.segments import JournalTail, Segment, chain, group_of, scans
from dgpu.journal.snapshot import (
    PREVIOUS_NAME,
    SNAPSHOT_NAME,
    Snapshot,
    load_newest,
    snapshot_index,
    write_snapshot,
)
from dgpu.service.follower.forecaster import Forecaster
from dgpu.service.follower.foresight import answer
from dgpu.service.follower.words import Ask, FillOrder, FollowerSettings
from dgpu.service.history.filling import DiskNearlyFull, HistoryChanged, refuse_full_disk
from dgpu.service.history.reader import HISTORY_NAME
from dgpu.service.history.writer import (
    HistoryWriter,
    begin_again,
    end_making,
    is_being_made,
)
from dgpu.service.results.file import RESULTS_NAME, ResultWriter
from dgpu.service.sqlite_files import FileUnusable
from dgpu.service.telemetry.file import TELEMETRY_NAME
from dgpu.service.telemetry.store import TelemetryStore
from dgpu.service.telemetry.tiers import Batch
from dgpu.wire.questions import Hastening
from dgpu.wire.wall_time import SHOWN

_MAX_GROUPS = 500  # in one step
_MAX_ROWS = 20_000  # collected for the history before they are written
_MAX_ROWS_AT_ONCE = 2_000  # in one transaction: a question waits for at most one of these
_MAX_ROWS_UNSAVED = 50_000  # collected while questions are answered first
_APPLY_S = 0.05  # at a time, before it checks for the next question
_CATCH_UP_S = 5.0  # before a question is answered from the current state
_CATCH_UP_WHY_S = 0.05
_RETRY_S = 2.0  # after a full disk

Say = Callable[[dict[str, Any]], None]

# No room, and rows of another version that do not fit. A damaged file is not among them.
_FILL_ERRORS = (
    DiskNearlyFull,
    HistoryChanged,
    sqlite3.OperationalError,
    sqlite3.IntegrityError,
    sqlite3.ProgrammingError,
    ValueError,
    LookupError,
    TypeError,
    OverflowError,
)


class Follower:
    def __init__(
        self, directory: Path, settings: FollowerSettings, say: Say, *, from_newest: bool = False
    ) -> None:
        self._directory = directory
        self._settings = settings
        self._say = say
        self._committed = 0
        self._told = False
        self._said: dict[str, int] = {}
        self._snapshot_index = 0
        self._snapshot_due_s = time.monotonic() + settings.snapshot_interval_ms / 1000
        self._commit_due_s = 0.0
        self._history_path = directory / HISTORY_NAME
        self._history = self._open_history()
        self._forecaster = Forecaster(directory, say=lambda text: say({"error": text}))
        self._telemetry = TelemetryStore(
            directory / TELEMETRY_NAME,
            max_bytes=settings.telemetry_bytes,
            max_age_ms=settings.telemetry_age_ms,
            say=lambda text: say({"error": text}),
        )
        self._results = ResultWriter(directory / RESULTS_NAME, settings.results)
        base = self._bridge() if from_newest else self._choose_base()
        self._history.complete(base.state)
        self._making = is_being_made(self._history_path)
        self._state = base.state
        self._epoch = base.epoch
        self._index = base.index  # of the last group applied
        self._key_files = KeyFiles(directory, base.key_files)
        with collector_off():
            self._read_archive()
        gc.freeze()
        self._tail = JournalTail(directory, after_index=self._index)
        self._unapplied: deque[Group] = deque()  # read from the journal
        SHOWN.follow(self._state.wall)

    @property
    def state(self) -> ClusterState:
        return self._state

    def commit_seen(self, index: int) -> None:
        """The scheduler reports: committed up to this group."""
        first, self._told = not self._told, True
        if first and index < self._history.index:
            # Acknowledged groups are missing. Only the history still records them.
            why = f"the history records group {self._history.index}, the journal ends at {index}"
            raise LostTail(str(self._history_path), 0, why, index=index, known=self._history.index)
        self._committed = max(self._committed, index)

    @property
    def behind(self) -> bool:
        return self._index < self._committed or self._unsaved

    @property
    def _unsaved(self) -> bool:
        """Applied, but not in the history yet."""
        return self._history.index < self._index

    @property
    def wait_s(self) -> float:
        """Time until the next work is due."""
        now_s = time.monotonic()
        if self._unsaved:
            return max(0.0, self._commit_due_s - now_s)
        if self._index < self._committed:
            return 0.0
        due_s = now_s + 3600.0 if self._index == self._snapshot_index else self._snapshot_due_s
        if self._forecaster.lags(self._index):
            due_s = min(due_s, self._forecaster.due_s)
        return max(0.0, due_s - now_s)

    def step(self) -> None:
        """Does a bounded piece of due work."""
        if not self._unsaved:
            self._apply_some(_MAX_ROWS, _APPLY_S)
        if self._unsaved and not self._save_some():
            return
        self.say_seen()
        self._end_making()
        if time.monotonic() >= self._snapshot_due_s and self._index > self._snapshot_index:
            self.snapshot()
        elif self._index >= self._committed and self._forecaster.is_due(self._index, time.monotonic()):
            told = self._forecaster.make(self._state, self._index)
            if told is not None:
                self._say({"forecast": told})

    def reply(self, ask: Ask) -> None:
        """Answers from the state of all committed groups, as far as they can be applied in time. The history is written
        later: no question waits for it.
        """
        question = ask.question
        self._catch_up(_CATCH_UP_WHY_S if isinstance(question, Hastening) else _CATCH_UP_S)
        if (
            isinstance(question, Hastening)
            and question.task_id not in self._state.tasks
            and self._index < self._committed
        ):
            self._say({"answer": {"id": ask.id, "behind": True}})
            return
        try:
            told = answer(self._state, question, ask.at, self._index)
        except Exception as error:  # noqa: BLE001 - the question gets the error; the follower continues
            self._say({"answer": {"id": ask.id, "error": f"{type(error).__name__}: {error}"}})
            return
        self._say({"answer": {"id": ask.id, "json": told}})

    def fill(self, order: FillOrder) -> None:
        """Adds rows of another scheduler's history. What cannot be added is refused; the follower continues."""
        try:
            refuse_full_disk(self._directory)
            self._results.fill(order.fill.page.results, self._state.last_at)
            self._history.fill(order.fill)
        except _FILL_ERRORS as error:
            self._say({"answer": {"id": order.id, "error": f"{type(error).__name__}: {error}"}})
            return
        self._say({"answer": {"id": order.id, "json": None}})

    def record(self, batch: Batch) -> None:
        self._telemetry.take(batch)

    def tend(self) -> bool:
        """Does a bounded piece of work on the telemetry. True: more is due."""
        self._telemetry.step()
        return self._telemetry.busy

    def snapshot_now(self) -> None:
        """Writes a snapshot even without changes: the file may be gone."""
        self._snapshot_index = 0
        self._snapshot_due_s = 0.0

    def snapshot(self) -> None:
        """A failure keeps the old snapshots and is retried soon."""
        try:
            self._history.settle()
            damage = write_snapshot(
                self._directory, self._state, index=self._index, epoch=self._epoch, key_files=self._key_files
            )
            if damage:
                self._say({"error": damage})
            self._snapshot_index = self._index
            self._snapshot_due_s = time.monotonic() + self._settings.snapshot_interval_ms / 1000
            self._say({"snapshot": self._index})
            covered = min(snapshot_index(self._directory / PREVIOUS_NAME), self._history.index)
            pack_covered(self._directory, covered)
            prune(self._directory, self._settings.retention, now_ms=self._state.last_at)
            self._results.trim(self._state.last_at)
            while self._history.trim(self._state.last_at):
                pass
        except (OSError, sqlite3.OperationalError) as error:
            self._snapshot_due_s = time.monotonic() + _RETRY_S
            self._say({"error": f"snapshot or archive: {error}"})
        except msgspec.DecodeError as error:
            self._snapshot_due_s = time.monotonic() + self._settings.snapshot_interval_ms / 1000
            self._say({"error": f"an unreadable snapshot was discarded: {error}"})

    def finish(self, *, final_snapshot: bool) -> None:
        """A clean stop: replays all committed groups and writes a snapshot if wanted."""
        while self.behind and not self._is_stuck:
            if self._unsaved:
                self._save_some()
            else:
                self._apply_some(_MAX_ROWS, _APPLY_S)
        self.say_seen()
        self._end_making()
        if final_snapshot and self._index > self._snapshot_index and not self._unsaved:
            self.snapshot()

    def say_seen(self) -> None:
        """`at`: the history contains everything up to this time. The next group may have the time of the last one."""
        seen = {"seen": self._history.index, "at": max(0, self._state.last_at - 1)}
        if seen != self._said:
            self._said = seen
            self._say(seen)

    def close(self) -> None:
        self._history.close()
        self._forecaster.close()
        self._telemetry.close()
        self._results.close()

    # Start

    def _open_history(self) -> HistoryWriter:
        path = self._history_path
        try:
            return HistoryWriter(path, audit=self._settings.audit)
        except FileUnusable as error:
            self._say({"note": f"{path}: {error}; the history is rebuilt"})
            begin_again(path)
            return HistoryWriter(path, audit=self._settings.audit)

    def _choose_base(self) -> Snapshot:
        """The newest state that is not ahead of the history. If there is none, the history is rebuilt."""
        newest, _ = load_newest(self._directory)
        self._snapshot_index = newest.index if newest.file.endswith(SNAPSHOT_NAME) else 0
        if newest.index <= self._history.index:
            return newest
        base = latest_state(self._directory, upto_index=self._history.index)
        if base is not None:
            return base
        return self._bridge_to(earliest_state(self._directory)) if self._history.index else self._begin_anew()

    def _bridge(self) -> Snapshot:
        """Groups after the end of the history are in no file any more. The newest snapshot contains their results."""
        newest, _ = load_newest(self._directory)
        self._snapshot_index = newest.index if newest.file.endswith(SNAPSHOT_NAME) else 0
        return self._bridge_to(newest)

    def _bridge_to(self, base: Snapshot) -> Snapshot:
        known = self._history.index
        if base.index > known:
            self._history.bridge(base.state, index=base.index)
            lost = f"the history has no events of groups {known + 1} to {base.index}"
            self._say({"note": f"{lost}: their files are not here. It continues from a snapshot"})
        return base

    def _begin_anew(self) -> Snapshot:
        base = earliest_state(self._directory)
        self._history.close()
        begin_again(self._history_path)
        self._history = self._open_history()
        if base.index:
            self._history.seed(base.state, index=base.index)
            self._say(
                {"note": f"the history reaches back to group {base.index}, which is where the archive begins"}
            )
        return base

    def _read_archive(self) -> None:
        """Packed segments were committed long ago, so they are read before the first message of the scheduler."""
        segments = chain(self._directory, self._index).segments
        packed: tuple[Segment, ...] = tuple(one for one in segments if one.last_index is not None)
        for segment, result in scans(packed):
            for record in result.records:
                if record.index > self._index:
                    self._follow(group_of(record, str(segment.path)))
                    if self._history.pending_rows >= _MAX_ROWS:
                        self._commit_all()
        if self._unsaved:
            self._commit_all()

    def _commit_all(self) -> None:
        self._results.commit(self._state.last_at)
        self._history.commit(self._index)

    # Replay

    def _follow(self, group: Group) -> None:
        for position, event in enumerate(group.events):
            apply(self._state, event)
            if isinstance(event, TasksSubmitted) and event.idempotency_key:
                self._key_files.note(packed_key(event))
            if isinstance(event, WallClockRead):
                SHOWN.follow(self._state.wall)
            self._forecaster.note(event)
            if isinstance(event, CallReturned) and group.index > self._history.index:
                self._results.note(event)
            if group.index > self._history.index:
                self._history.note(event, self._state, index=group.index, position=position)
        self._index, self._epoch = group.index, group.epoch
        every = self._settings.digest_groups
        if every and group.index % every == 0:
            self._say({"digest": StateDigest(group.index, digest(self._state))})

    def _end_making(self) -> None:
        """Readers use a rebuilt history once it is complete."""
        if self._making and self._told and self._index >= self._committed:
            end_making(self._history_path)
            self._making = False
            self._say({"note": f"the history is complete again, up to group {self._index}"})

    def _apply_some(self, max_rows: int, patience_s: float) -> None:
        """Applies groups until the history has this many rows to write, one read of the journal is used up, or the time
        is over.
        """
        until_s = time.monotonic() + patience_s
        if not self._unapplied:
            self._unapplied.extend(self._tail.read(upto_index=self._committed, max_groups=_MAX_GROUPS))
        while self._unapplied and self._history.pending_rows < max_rows:
            self._follow(self._unapplied.popleft())
            if time.monotonic() >= until_s:
                return

    def _catch_up(self, patience_s: float) -> None:
        until_s = time.monotonic() + patience_s
        while (
            self._index < self._committed
            and (left_s := until_s - time.monotonic()) > 0
            and not self._is_stuck
        ):
            if self._history.pending_rows < _MAX_ROWS_UNSAVED:
                self._apply_some(_MAX_ROWS_UNSAVED, left_s)
            else:
                self._save_some()

    @property
    def _is_stuck(self) -> bool:
        """There was no room for the history. The journal still has everything."""
        return time.monotonic() < self._commit_due_s

    def _save_some(self) -> bool:
        """True: the history has all applied groups."""
        if self._is_stuck:
            return False
        try:
            self._results.commit(
                self._state.last_at
            )  # first: the index of the history says that both are written
            return self._history.write_some(self._index, _MAX_ROWS_AT_ONCE)
        except sqlite3.OperationalError as error:
            self._commit_due_s = time.monotonic() + _RETRY_S
            self._say({"error": f"history: {error}"})
            return False
