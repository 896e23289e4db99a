"""Adds rows of another scheduler's history to this one. Runs in the follower, in the caller's transaction.

Rows of groups that both histories have are equal, so a row that is here stays, and a page may come twice. Only tasks
and attempts whose end is not here are replaced.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from msgspec.structs import asdict

from dgpu.core.model.lease import Lease
from dgpu.core.state import ClusterState
from dgpu.service.history.audit_rows import Kind
from dgpu.service.history.past_words import Cell, Fill, PastPage, PastRows, Reach
from dgpu.service.history.rows import text

_MIN_FREE_BYTES: Final = 256 << 20  # on the disk, which the journal needs too
_KINDS: Final = frozenset(Kind)
_TABLES: Final = ("tasks", "attempts", "attempt_usage", "task_events", "audit", "node_events")
# After a gap, tasks whose end was not seen are marked as forgotten.
_REMOVE_UNFINISHED: Final = (
    "DELETE FROM tasks WHERE id = ? AND forgotten = 1 AND status IN ('pending', 'running')"
)
_FORGET: Final = "UPDATE tasks SET forgotten = 1 WHERE id = ?"  # by itself, so that the task is counted
# A history that begins, or continues after a gap, notes the submits of living tasks at that place.
_SUBMITTED: Final = "UPDATE tasks SET submitted_index = ?1 WHERE id = ?2 AND submitted_index > ?1"
_STARTED: Final = "SELECT lease_id FROM attempts WHERE ended_at = 0 AND started_at > 0"
_END_ATTEMPT: Final = """ON CONFLICT (lease_id) DO UPDATE SET started_at = excluded.started_at,
    ended_at = excluded.ended_at, exit_code = excluded.exit_code, reason = excluded.reason, error = excluded.error
    WHERE attempts.ended_at = 0"""


class HistoryChanged(Exception):  # noqa: N818 - it says what happened
    """It was rebuilt, or has continued after a gap, since the copy began."""


class DiskNearlyFull(Exception):  # noqa: N818 - it says what happened
    """A copy must not take the room of new tasks."""


class Added(NamedTuple):
    tasks: int = 0
    node_events: int = 0
    audited: Mapping[int, int] = {}  # by kind


def fill_in(connection: sqlite3.Connection, given: Fill) -> Added:
    """Raises HistoryChanged, or errors of sqlite3 and ValueError for rows of a version that does not fit."""
    reach = Reach.of(dict(connection.execute("SELECT name, value FROM meta")))
    if reach.state != given.into:
        raise HistoryChanged("the history has changed since the copy began")
    if given.source is not None:
        filled = asdict(reach.filled_from(given.source))
        connection.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", filled.items())
    return _add_page(connection, given.page)


def refuse_full_disk(directory: Path) -> None:
    """Raises DiskNearlyFull."""
    if shutil.disk_usage(directory).free < _MIN_FREE_BYTES:
        raise DiskNearlyFull(f"less than {_MIN_FREE_BYTES >> 20} MiB are free on the disk of {directory}")


def rows_of_leases(connection: sqlite3.Connection, state: ClusterState) -> dict[int, list[Any]]:
    """Attempts that run, for a history that continues with this state. By lease; the columns of writer._ATTEMPT.

    A rank that has ended has a lease until its gang ends, but the lease does not tell how the rank ended. Known starts
    stay: a state has only the start of the first rank.
    """
    known = {row[0] for row in connection.execute(_STARTED)}
    leases = (lease for lease in state.leases.values() if not lease.ended and lease.id not in known)
    return {lease.id: _attempt(state, lease) for lease in leases}


def _add_page(connection: sqlite3.Connection, page: PastPage) -> Added:
    tasks = node_events = 0
    audited: Counter[Any] = Counter()
    for given in page.tables:
        if given.table not in _TABLES:
            continue
        rows = _known(connection, given)
        if given.table == "tasks":
            tasks = sum(_add_task(connection, row) for row in rows)
        elif given.table == "node_events":
            node_events = sum(_add(connection, "node_events", row) for row in rows)
        elif given.table == "audit":
            for row in rows:
                if row["kind"] in _KINDS:
                    audited[row["kind"]] += _add(connection, "audit", row)
        else:
            conflict = _END_ATTEMPT if given.table == "attempts" else "ON CONFLICT DO NOTHING"
            for row in rows:
                _add(connection, given.table, row, conflict)
    return Added(tasks, node_events, audited)


def _attempt(state: ClusterState, lease: Lease) -> list[Any]:
    task = state.tasks[lease.task_id]
    started_at = task.started_at if lease.started else 0
    return [
        lease.id, task.id, task.attempt, lease.node_id, text(lease.gpu_ids), lease.granted_at, started_at, 0, None,
        "", "", lease.share_milli,
    ]  # fmt: skip


def _known(connection: sqlite3.Connection, given: PastRows) -> list[dict[str, Cell]]:
    """Without columns that this version does not have."""
    columns = {row[1] for row in connection.execute(f"PRAGMA table_info({given.table})")}
    named = (zip(given.columns, row, strict=True) for row in given.rows)
    return [{name: cell for name, cell in row if name in columns} for row in named]


def _add_task(connection: sqlite3.Connection, row: dict[str, Cell]) -> int:
    """Returns the change of the number of tasks. A task that the core still has is in every history."""
    removed = added = 0
    if row["forgotten"]:
        removed = connection.execute(_REMOVE_UNFINISHED, (row["id"],)).rowcount
        added = _add(connection, "tasks", row | {"forgotten": 0})
    if added:
        connection.execute(_FORGET, (row["id"],))
    else:
        connection.execute(_SUBMITTED, (row["submitted_index"], row["id"]))
    return added - removed


def _add(
    connection: sqlite3.Connection,
    table: str,
    row: dict[str, Cell],
    conflict: str = "ON CONFLICT DO NOTHING",
) -> int:
    names, places = ", ".join(row), ", ".join("?" * len(row))
    query = f"INSERT INTO {table} ({names}) VALUES ({places}) {conflict}"  # noqa: S608 - names of our tables
    return connection.execute(query, tuple(row.values())).rowcount
