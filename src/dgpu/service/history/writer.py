"""Fills the history from replayed events. Runs only in the follower; all of it can be rebuilt from the journal."""

from __future__ import annotations

import os
import secrets
import sqlite3
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from dgpu.core import events
from dgpu.core.events import Event
from dgpu.core.model.attempt_usage import AttemptUsage
from dgpu.core.model.task import Shape, Task
from dgpu.core.state import ClusterState
from dgpu.journal.durable import PRIVATE_FILE
from dgpu.service.event_texts import gang_facts, named_tasks, shared_facts
from dgpu.service.history.audit_rows import AuditLimits, AuditRows
from dgpu.service.history.filling import fill_in, rows_of_leases
from dgpu.service.history.past_words import Fill
from dgpu.service.history.reader import MAKING, MAX_TASKS
from dgpu.service.history.rows import (
    COMPLETE_TASK,
    INSERT_TASK,
    UPDATE_TASK,
    TaskRows,
    insert_into,
    text,
    updated,
)
from dgpu.service.history.schema import open_for_writing
from dgpu.service.sqlite_files import transaction

_TRIM_TASKS = 5_000  # in one transaction, and as many events of nodes
_TRIM_SLACK = 1_000  # so that trimming does not run for every task
_KEEP_NODE_EVENTS = 100_000
_COMPLETE = "complete_tasks"  # in meta: the columns of rows.ADDED_COLUMNS are filled
_FORGETTING_WEIGHT = 5  # a forgotten task enters this many indexes; other rows count as 1

_ATTEMPT = (
    "lease_id", "task_id", "attempt", "node", "gpu_ids", "placed_at", "started_at", "ended_at", "exit_code", "reason",
    "error", "share_milli",
)  # fmt: skip
_EVENT = ("journal_index", "position", "at", "type", "body")

_TASK_EVENTS = (
    events.TaskPlaced,
    events.TaskStarted,
    events.TaskFinished,
    events.TaskRequeued,
    events.TaskCancelRequested,
    events.TaskStopRequested,
    events.DemandChanged,
    events.GangPlaced,
    events.RankEnded,
)
_NODE_EVENTS = (
    events.NodeRegistered,
    events.InventoryChanged,
    events.NodeLost,
    events.NodeDraining,
    events.NodeResumed,
    events.NodeRemoved,
    events.ObservationChanged,
    events.GpuHealthChanged,
    events.GpuBlamed,
)


_INSERT_ATTEMPT = insert_into("attempts", _ATTEMPT)
_INSERT_TASK_EVENT = insert_into("task_events", ("task_id", *_EVENT))
_INSERT_NODE_EVENT = insert_into("node_events", ("node", *_EVENT))
_FORGET_TASK = "UPDATE tasks SET forgotten = 1 WHERE id = ?"
_INSERT_USAGE = insert_into("attempt_usage", ("lease_id", "task_id", *AttemptUsage.__struct_fields__))
_START_ATTEMPT = "UPDATE attempts SET started_at = ? WHERE lease_id = ?"
_END_ATTEMPT = "UPDATE attempts SET ended_at = ?, exit_code = ?, reason = ?, error = ? WHERE lease_id = ?"


class HistoryWriter:
    """Collects rows while events are applied; `commit` writes them with their index, in one transaction.

    A failed commit (a full disk) keeps the collected rows: it can be tried again.
    """

    def __init__(self, path: Path, *, max_tasks: int = MAX_TASKS, audit: AuditLimits | None = None) -> None:
        self._max_tasks = max_tasks
        self._path = path
        self._connection = open_for_writing(path)
        self._inode = path.stat().st_ino
        self.index = self._meta("index")
        if not self._meta("file_id"):
            self._connection.execute("INSERT INTO meta VALUES ('file_id', ?)", (1 + secrets.randbits(62),))
        # Rows beyond the index were written only in part and will be written again.
        self._tasks = self._count("tasks WHERE submitted_index <= ?", self.index)
        self._kept_node_events = self._count("node_events WHERE journal_index <= ?", self.index)
        self._audit = AuditRows(self._connection, audit or AuditLimits(), index=self.index)
        self._clear()

    @property
    def pending_rows(self) -> int:
        rows = len(self._touched) + len(self._task_events) + len(self._node_events) + len(self._audit)
        return rows + _FORGETTING_WEIGHT * len(self._forgotten)

    def seed(self, state: ClusterState, *, index: int) -> None:
        """Starts in the middle: tasks that are alive at `index` are known, tasks that ended before are not."""
        for task in state.tasks.values():
            self._touched[task.id] = (task, state.shapes[task.shape_id])
            self._new[task.id] = index
        self._attempts.update(rows_of_leases(self._connection, state))
        self._meta_values.update(from_index=index, from_at=state.last_at, index=index, epoch=state.epoch)
        self._cluster_id = state.cluster_id
        self.commit(index)

    def bridge(self, state: ClusterState, *, index: int) -> None:
        """Continues at `index` without the events in between: tasks of `state` get their state there, and tasks that it
        no longer has are marked as forgotten.
        """
        known = {row[0] for row in self._connection.execute("SELECT id FROM tasks WHERE forgotten = 0")}
        for task in state.tasks.values():
            self._touched[task.id] = (task, state.shapes[task.shape_id])
            if task.id not in known:
                self._new[task.id] = index
        self._forgotten += [task_id for task_id in sorted(known) if task_id not in state.tasks]
        self._attempts.update(rows_of_leases(self._connection, state))
        self._meta_values.update(gap_from=self._meta("gap_from") or self.index, gap_until=index)
        self.commit(index)

    def fill(self, given: Fill) -> None:
        """Adds what another scheduler's history has and this one lacks. Raises what `fill_in` raises."""
        with transaction(self._connection) as connection:
            added = fill_in(connection, given)
        self._tasks += added.tasks
        self._kept_node_events += added.node_events
        self._audit.added(added.audited)

    def complete(self, state: ClusterState) -> None:
        """Fills columns that an earlier version did not write, for tasks that the core still has. Once per file."""
        if self._meta(_COMPLETE):
            return
        rows = TaskRows()
        values = (rows.completed(task, state.shapes[task.shape_id]) for task in state.tasks.values())
        with transaction(self._connection) as connection:
            connection.executemany(COMPLETE_TASK, values)
            connection.execute("INSERT OR REPLACE INTO meta VALUES (?, 1)", (_COMPLETE,))

    def note(self, event: Event, state: ClusterState, *, index: int, position: int) -> None:
        """Called after the event was applied to `state`."""
        if isinstance(event, events.TasksSubmitted):
            count = sum(entry[0] for entry in event.entries)
            for task_id in range(event.first_id, event.first_id + count):
                self._new[task_id] = index
                self._touch(task_id, state)
        elif isinstance(event, events.Audited):
            self._audit.note(event, index=index, position=position)
        elif isinstance(event, events.AttemptMeasured):
            row = (event.lease_id, event.task_id, *msgspec.structs.astuple(event.usage))
            self._attempt_updates.append((_INSERT_USAGE, row))
        elif isinstance(event, events.TasksForgotten):
            self._forgotten += event.task_ids
        elif isinstance(event, events.EpochBegan):
            self._meta_values["epoch"] = event.epoch
            self._cluster_id = event.cluster_id
        elif named := named_tasks(event):
            body = text(shared_facts(event))
            for task_id in named:
                self._touch(task_id, state)
                self._task_events.append((task_id, index, position, event.at, type(event).__name__, body))
        elif isinstance(event, _NODE_EVENTS):
            self._note_node(event, state, index, position)
        elif isinstance(event, _TASK_EVENTS):
            self._touch(event.task_id, state)
            body = (
                text(gang_facts(event)) if isinstance(event, events.GangPlaced) else _body(event, "task_id")
            )
            row = (event.task_id, index, position, event.at, type(event).__name__, body)
            self._task_events.append(row)
            self._note_attempt(event)

    def write_some(self, index: int, max_rows: int) -> bool:
        """Writes a bounded part of the collected rows, in one transaction. True: it was the last part, and `index` is
        reached.

        Readers may see rows of tasks beyond the index; those tasks are also in memory. Tasks are marked as forgotten
        only together with the index.
        """
        if len(self._touched) + len(self._attempts) + len(self._task_events) + len(self._audit) <= max_rows:
            self.commit(index)
            return True
        self._refuse_lost_file()
        tasks = dict(islice(self._touched.items(), max_rows))
        attempts = dict(islice(self._attempts.items(), max_rows - len(tasks)))
        task_events = self._task_events[: max_rows - len(tasks) - len(attempts)]
        with transaction(self._connection) as connection:
            new = self._write_tasks(tasks)
            connection.executemany(_INSERT_ATTEMPT, map(tuple, attempts.values()))
            connection.executemany(_INSERT_TASK_EVENT, task_events)
            audited = self._audit.write(max_rows - len(tasks) - len(attempts) - len(task_events))
        self._tasks += new
        self._audit.written(audited)
        for task_id in tasks:
            del self._touched[task_id]
            self._new.pop(task_id, None)
        for lease_id in attempts:
            del self._attempts[lease_id]
        del self._task_events[: len(task_events)]
        return False

    def commit(self, index: int) -> None:
        """Raises sqlite3.Error; then nothing was written and all rows are still collected."""
        self._refuse_lost_file()
        with transaction(self._connection) as connection:
            new = self._write_tasks(self._touched)
            connection.executemany(_INSERT_ATTEMPT, map(tuple, self._attempts.values()))
            for statement, row in self._attempt_updates:
                connection.execute(statement, row)
            connection.executemany(_INSERT_TASK_EVENT, self._task_events)
            connection.executemany(_INSERT_NODE_EVENT, self._node_events)
            audited = self._audit.write()
            connection.executemany(_FORGET_TASK, ((task_id,) for task_id in self._forgotten))
            meta = {**self._meta_values, "index": index}
            connection.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", meta.items())
            if self._cluster_id:
                connection.execute(
                    "INSERT OR REPLACE INTO identity VALUES ('cluster_id', ?)", (self._cluster_id,)
                )
        self._tasks += new
        self._kept_node_events += len(self._node_events)
        self._audit.written(audited)
        self.index = index
        self._clear()

    def trim(self, now: int) -> int:
        """Removes the oldest forgotten tasks, events of nodes and audit entries beyond their limits, in portions.
        Returns the number removed.
        """
        excess = self._tasks - self._max_tasks
        doomed: list[int] = []
        if excess >= min(_TRIM_SLACK, max(1, self._max_tasks // 10)):
            doomed += self._oldest(min(excess, _TRIM_TASKS))
        if doomed:
            self._remove(doomed)
        return len(doomed) + self._trim_node_events() + self._audit.trim(now)

    def settle(self) -> None:
        """Syncs the committed rows: after a power cut, a snapshot must not be ahead of the history."""
        self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def close(self) -> None:
        self._connection.close()

    def _refuse_lost_file(self) -> None:
        """SQLite silently keeps using a file that was deleted."""
        try:
            is_in_place = self._path.stat().st_ino == self._inode
        except FileNotFoundError:
            is_in_place = False
        if not is_in_place:
            raise sqlite3.DatabaseError("it was deleted or replaced")

    def _clear(self) -> None:
        self._new: dict[int, int] = {}  # task id → index of its submit
        self._touched: dict[int, tuple[Task, Shape]] = {}
        self._forgotten: list[int] = []
        self._attempts: dict[int, list[Any]] = {}
        self._attempt_updates: list[tuple[str, tuple[Any, ...]]] = []
        self._task_events: list[tuple[Any, ...]] = []
        self._node_events: list[tuple[Any, ...]] = []
        self._meta_values: dict[str, int] = {}
        self._cluster_id = ""

    def _touch(self, task_id: int, state: ClusterState) -> None:
        task = state.tasks.get(task_id)  # type: ignore[call-overload]
        if task is not None:
            self._touched[task_id] = (task, state.shapes[task.shape_id])

    def _note_attempt(self, event: Event) -> None:
        if isinstance(event, events.TaskPlaced):
            gpus = text(event.gpu_ids)
            self._attempts[event.lease_id] = [
                event.lease_id, event.task_id, event.attempt, event.node_id, gpus, event.at, 0, 0, None, "", "",
                event.share_milli,
            ]  # fmt: skip
        elif isinstance(event, events.GangPlaced):
            for rank in event.ranks:
                self._note_attempt(rank)
        elif isinstance(event, events.RankEnded):
            self._end_attempt(event.lease_id, (event.finished_at, event.exit_code, event.reason, event.error))
        elif isinstance(event, events.TaskStarted):
            if (row := self._attempts.get(event.lease_id)) is not None:
                row[6] = event.started_at
            else:
                self._attempt_updates.append((_START_ATTEMPT, (event.started_at, event.lease_id)))
        elif isinstance(event, events.TaskFinished) and event.lease_id:
            self._end_attempt(event.lease_id, (event.finished_at, event.exit_code, event.reason, event.error))
        elif isinstance(event, events.TaskRequeued):
            self._end_attempt(event.lease_id, (event.at, None, event.reason, event.error))

    def _end_attempt(self, lease_id: int, ended: tuple[Any, ...]) -> None:
        if (row := self._attempts.get(lease_id)) is not None:
            row[7:11] = ended
        else:
            self._attempt_updates.append((_END_ATTEMPT, (*ended, lease_id)))

    def _note_node(self, event: Any, state: ClusterState, index: int, position: int) -> None:
        if isinstance(event, events.NodeRegistered):
            node_id = event.node.id
        elif isinstance(event, events.ObservationChanged):
            gpu = state.gpus.get(event.gpu_id)
            node_id = gpu.node_id if gpu else ""  # type: ignore[assignment]
        else:
            node_id = event.node_id
        row = (node_id, index, position, event.at, type(event).__name__, _body(event, "node_id"))
        self._node_events.append(row)

    def _write_tasks(self, touched: dict[int, tuple[Task, Shape]]) -> int:
        """Returns the number of new tasks."""
        rows = TaskRows()
        inserts: list[tuple[Any, ...]] = []
        updates: list[tuple[Any, ...]] = []
        for task_id, (task, shape) in touched.items():
            submitted_index = self._new.get(task_id)
            if submitted_index is None:
                updates.append(updated(task, shape))
            else:
                inserts.append(rows.inserted(task, shape, submitted_index))
        self._connection.executemany(INSERT_TASK, inserts)
        self._connection.executemany(UPDATE_TASK, updates)
        return len(inserts)

    def _oldest(self, limit: int) -> list[int]:
        query = "SELECT id FROM tasks WHERE forgotten = 1 ORDER BY id LIMIT ?"
        return [row[0] for row in self._connection.execute(query, (limit,))]

    def _remove(self, task_ids: list[int]) -> None:
        rows = [(task_id,) for task_id in task_ids]
        connection = self._connection
        with transaction(connection):
            connection.executemany("DELETE FROM task_events WHERE task_id = ?", rows)
            connection.executemany("DELETE FROM attempts WHERE task_id = ?", rows)
            connection.executemany("DELETE FROM attempt_usage WHERE task_id = ?", rows)
            connection.executemany("DELETE FROM tasks WHERE id = ?", rows)
        self._tasks -= len(task_ids)

    def _trim_node_events(self) -> int:
        """With their own limit: nodes and GPUs change state even while no task is submitted."""
        excess = self._kept_node_events - _KEEP_NODE_EVENTS
        if excess < _TRIM_SLACK:
            return 0
        query = "SELECT journal_index FROM node_events ORDER BY journal_index LIMIT 1 OFFSET ?"
        (last,) = self._connection.execute(query, (min(excess, _TRIM_TASKS) - 1,)).fetchone()
        with transaction(self._connection) as connection:
            removed = connection.execute("DELETE FROM node_events WHERE journal_index <= ?", (last,)).rowcount
        self._kept_node_events -= removed
        return int(removed)

    def _count(self, what: str, index: int) -> int:
        return int(self._connection.execute(f"SELECT count(*) FROM {what}", (index,)).fetchone()[0])  # noqa: S608

    def _meta(self, name: str) -> int:
        row = self._connection.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
        return int(row[0]) if row else 0


def remove_history(path: Path) -> None:
    """Deletes the main file first: the others mean nothing without it, but an old log beside a new file would damage
    it.
    """
    for suffix in ("", "-wal", "-shm", "-journal"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def begin_again(path: Path) -> None:
    """Readers do not use it until `end_making`."""
    os.close(os.open(_making(path), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE))
    remove_history(path)


def is_being_made(path: Path) -> bool:
    return _making(path).exists()


def end_making(path: Path) -> None:
    _making(path).unlink(missing_ok=True)


def _making(path: Path) -> Path:
    return path.with_name(path.name + MAKING)


def _body(event: Event, left_out: str) -> str:
    fields = msgspec.structs.asdict(event)
    fields.pop(left_out, None)
    del fields["at"]
    return text(fields)
