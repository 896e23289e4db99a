"""Reads a history in pages, for the history of another scheduler that lacks events. Calls block: use a thread."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import NamedTuple

from dgpu.service.history.past_words import Cursor, Part, PastPage, PastRows
from dgpu.service.history.reader import History
from dgpu.service.results.file import ResultReader, StoredResult

_TASKS = 200  # in a page
_AT_ONCE = 20  # tasks that are read together: each may be large
_ENTRIES = 1_000  # of the audit log, or events of nodes
_BYTES = 1 << 20  # of a page, before the row or task that exceeds it
_MAX_ATTEMPTS = 10_000  # of a task, each rank of a gang counts; the latest
_MAX_TASK_BYTES = 4 << 20  # of a table, for one task: a page must fit into a message
_MAX_EVENTS = 1_000  # of a task; readers show no more
_RESULTS = 100  # at most 256 KiB each

# The latest first: they are asked for most.
_TASK = "SELECT * FROM tasks WHERE id < ? AND submitted_index <= ? ORDER BY id DESC LIMIT ?"
_OF_TASK = {
    # Attempts that have not ended are known wherever their task is.
    "attempts": """SELECT * FROM attempts WHERE task_id = :task AND ended_at > 0
        ORDER BY lease_id DESC LIMIT :attempts""",
    "attempt_usage": """SELECT * FROM attempt_usage WHERE task_id = :task
        ORDER BY lease_id DESC LIMIT :attempts""",
    "task_events": """SELECT * FROM task_events WHERE task_id = :task AND journal_index <= :upto
        ORDER BY journal_index, position LIMIT :events""",
}
_AUDIT = """SELECT * FROM audit WHERE (at, journal_index, position) < (?, ?, ?) AND journal_index <= ?
    ORDER BY at DESC, journal_index DESC, position DESC LIMIT ?"""
_NODES = """SELECT * FROM node_events WHERE (node, journal_index, position) > (?, ?, ?) AND journal_index <= ?
    ORDER BY node, journal_index, position LIMIT ?"""
_KEYS: dict[Part, tuple[str, ...]] = {
    "tasks": ("id",),
    "audit": ("at", "journal_index", "position"),
    "node_events": ("node", "journal_index", "position"),
    "results": ("task_id",),
}
_END = 1 << 62
_FIRST: dict[Part, tuple[int | str, ...]] = {
    "tasks": (_END,),
    "audit": (_END, _END, _END),
    "node_events": ("", 0, 0),
    "results": (_END,),
}
_PARTS: tuple[Part, ...] = ("tasks", "audit", "node_events", "results")


class Past(NamedTuple):
    history: History
    results: ResultReader

    def close(self) -> None:
        self.history.close()
        self.results.close()


def past_page(past: Past, cursor: Cursor, upto: int) -> PastPage:
    """Raises HistoryDamaged or sqlite3.Error."""
    after = cursor.after or _FIRST[cursor.part]
    if cursor.part == "tasks":
        return _tasks(past.history, after, upto)
    if cursor.part == "results":
        return _results(past.results, int(after[0]))
    query = _AUDIT if cursor.part == "audit" else _NODES
    rows = past.history.rows(query, (*after, upto, _ENTRIES))
    taken = _until_full(rows, _BYTES)
    is_last = len(taken) == len(rows) < _ENTRIES
    return PastPage(
        tables=(_rows(cursor.part, taken),) if taken else (),
        next=_next_part(cursor.part) if is_last else _after(cursor.part, taken[-1]),
    )


def _tasks(history: History, after: tuple[int | str, ...], upto: int) -> PastPage:
    taken: dict[str, list[sqlite3.Row]] = {table: [] for table in ("tasks", *_OF_TASK)}
    size = 0
    is_last = False
    while len(taken["tasks"]) < _TASKS and size < _BYTES and not is_last:
        found = history.rows(_TASK, (*after, upto, min(_AT_ONCE, _TASKS - len(taken["tasks"]))))
        is_last = not found
        for task in found:
            taken["tasks"].append(task)
            after = (task["id"],)
            size += _size(task)
            values = {"task": task["id"], "upto": upto, "attempts": _MAX_ATTEMPTS, "events": _MAX_EVENTS}
            for table, query in _OF_TASK.items():
                rows = _until_full(history.rows(query, values), _MAX_TASK_BYTES)
                taken[table] += rows
                size += sum(map(_size, rows))
            if size >= _BYTES:
                break
    return PastPage(
        tables=tuple(_rows(table, rows) for table, rows in taken.items() if rows),
        next=_next_part("tasks") if is_last else Cursor(part="tasks", after=after),
    )


def _until_full(rows: Sequence[sqlite3.Row], max_bytes: int) -> list[sqlite3.Row]:
    """Up to the row that reaches the limit."""
    taken: list[sqlite3.Row] = []
    size = 0
    for row in rows:
        taken.append(row)
        size += _size(row)
        if size >= max_bytes:
            break
    return taken


def _results(results: ResultReader, before: int) -> PastPage:
    found = results.before(before, _RESULTS)
    taken: list[StoredResult] = []
    size = 0
    for result in found:
        taken.append(result)
        size += len(result.result) + len(result.traceback)
        if size >= _BYTES:
            break
    is_last = len(taken) == len(found) < _RESULTS
    after = None if is_last else Cursor(part="results", after=(taken[-1].task_id,))
    return PastPage(results=tuple(taken), next=after)


def _rows(table: str, rows: Sequence[sqlite3.Row]) -> PastRows:
    return PastRows(table=table, columns=tuple(rows[0].keys()), rows=tuple(map(tuple, rows)))


def _after(part: Part, row: sqlite3.Row) -> Cursor:
    return Cursor(part=part, after=tuple(row[name] for name in _KEYS[part]))


def _next_part(part: Part) -> Cursor | None:
    place = _PARTS.index(part) + 1
    return Cursor(part=_PARTS[place]) if place < len(_PARTS) else None


def _size(row: sqlite3.Row) -> int:
    return sum(len(cell) if isinstance(cell, str) else 8 for cell in row)
