"""Records of the history about groups that the journal has lost: names for the refusal, marks for an accepted loss."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import msgspec

from dgpu.core.state import ClusterState
from dgpu.service.history.schema import open_for_writing
from dgpu.service.sqlite_files import open_to_read, transaction

LOST_TAIL = "lost_tail"  # the reason of tasks and attempts that only the history still has
_ERROR = "the part of the journal that held it was lost; submit it again"
_MAX_NAMED = 1_000


class HistoryEnd(msgspec.Struct, frozen=True, kw_only=True):
    index: int = 0
    epoch: int = 0
    last_task: int = 0
    cluster_id: str = ""


class Lost(msgspec.Struct, frozen=True, kw_only=True):
    tasks: tuple[int, ...] = ()  # submitted in lost groups, the first ones
    total: int = 0
    changed: tuple[int, ...] = ()  # known, but changed in lost groups
    changed_total: int = 0


def history_end(path: Path) -> HistoryEnd:
    """Empty if there is no readable history: it will be rebuilt and proves nothing."""
    with contextlib.suppress(sqlite3.Error), contextlib.closing(open_to_read(path)) as connection:
        meta = dict(connection.execute("SELECT name, value FROM meta"))
        (last_task,) = connection.execute("SELECT max(id) FROM tasks").fetchone()
        cluster_id = ""
        with contextlib.suppress(sqlite3.OperationalError):  # a history of an earlier version
            row = connection.execute("SELECT value FROM identity WHERE name = 'cluster_id'").fetchone()
            cluster_id = row[0] if row else ""
        return HistoryEnd(
            index=int(meta.get("index", 0)),
            epoch=int(meta.get("epoch", 0)),
            last_task=last_task or 0,
            cluster_id=cluster_id,
        )
    return HistoryEnd()


def lost_of(path: Path, *, after_index: int, next_task_id: int) -> Lost:
    is_lost = "submitted_index > ?1 OR (?2 > 0 AND id >= ?2)"
    bounds = (after_index, next_task_id)
    changed = (
        "SELECT DISTINCT task_id FROM task_events WHERE journal_index > ?1 "  # noqa: S608 - constant text
        f"AND task_id NOT IN (SELECT id FROM tasks WHERE {is_lost})"
    )
    with contextlib.suppress(sqlite3.Error), contextlib.closing(open_to_read(path)) as connection:

        def ids(query: str) -> tuple[tuple[int, ...], int]:
            (total,) = connection.execute(f"SELECT count(*) FROM ({query})", bounds).fetchone()  # noqa: S608 - constant text
            return tuple(row[0] for row in connection.execute(f"{query} LIMIT {_MAX_NAMED}", bounds)), total

        tasks, total = ids(f"SELECT id FROM tasks WHERE {is_lost}")  # noqa: S608 - constant text
        again, changed_total = ids(changed)
        return Lost(tasks=tasks, total=total, changed=again, changed_total=changed_total)
    return Lost()


def mark_lost(path: Path, state: ClusterState, *, index: int, now_ms: int) -> int:
    """The history continues at `index`. Lost tasks stay in it; unfinished ones are marked as failed.

    Returns the number of lost tasks. No follower may run on the file.
    """
    with contextlib.closing(open_for_writing(path)) as connection, transaction(connection):
        lost = _mark_tasks(connection, state, now_ms)
        _mark_attempts(connection, state, now_ms)
        connection.execute("INSERT OR REPLACE INTO meta VALUES ('index', ?)", (index,))
    return lost


def _mark_tasks(connection: sqlite3.Connection, state: ClusterState, now_ms: int) -> int:
    """Marks tasks that the core no longer has as forgotten, and unmarks tasks that it has again."""
    rows = connection.execute(
        "SELECT id, forgotten FROM tasks WHERE forgotten = 0 OR id >= ?", (min(state.tasks, default=0),)
    )
    known = rows.fetchall()
    lost = [(task_id,) for task_id, forgotten in known if not forgotten and task_id not in state.tasks]
    back = [(task_id,) for task_id, forgotten in known if forgotten and task_id in state.tasks]
    connection.executemany(
        "UPDATE tasks SET status = 'failed', reason = ?, error = ?, finished_at = ? "
        "WHERE id = ? AND status IN ('pending', 'running')",
        ((LOST_TAIL, _ERROR, now_ms, *row) for row in lost),
    )
    connection.executemany("UPDATE tasks SET forgotten = 1 WHERE id = ?", lost)
    connection.executemany(
        "UPDATE task_counts SET number = number - 1 WHERE (tenant, pool, priority, status) = "
        "(SELECT tenant, pool, priority, status FROM tasks WHERE id = ?)",
        back,
    )
    connection.executemany("UPDATE tasks SET forgotten = 0 WHERE id = ?", back)
    return len(lost)


def _mark_attempts(connection: sqlite3.Connection, state: ClusterState, now_ms: int) -> None:
    unended = connection.execute("SELECT lease_id FROM attempts WHERE ended_at = 0").fetchall()
    lost = [(now_ms, LOST_TAIL, _ERROR, lease_id) for (lease_id,) in unended if lease_id not in state.leases]
    connection.executemany("UPDATE attempts SET ended_at = ?, reason = ?, error = ? WHERE lease_id = ?", lost)
