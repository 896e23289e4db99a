"""The tables, indexes and counters of the history."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from dgpu.service.history.audit_rows import AUDIT_SQL
from dgpu.service.history.rows import ADDED_COLUMNS
from dgpu.service.sqlite_files import is_empty, make_tables, open_to_write, use_log

HISTORY_VERSION = 1

# Indexes of tasks cover only forgotten tasks: a task enters them once, after its last change.
SCHEMA_SQL = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE tasks (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL, tenant TEXT NOT NULL, pool TEXT NOT NULL, priority INTEGER NOT NULL,
    gpus INTEGER NOT NULL, gpu_models TEXT NOT NULL, gpu_memory_mb INTEGER NOT NULL, cpus_milli INTEGER NOT NULL,
    ram_mb INTEGER NOT NULL, timeout_ms INTEGER NOT NULL, max_retries INTEGER NOT NULL, restart TEXT NOT NULL,
    allocation INTEGER NOT NULL, command TEXT NOT NULL, workdir TEXT NOT NULL, labels TEXT NOT NULL,
    created_at INTEGER NOT NULL, submitted_index INTEGER NOT NULL,
    status TEXT NOT NULL, node TEXT, gpu_ids TEXT NOT NULL, attempt INTEGER NOT NULL, retries INTEGER NOT NULL,
    started_at INTEGER NOT NULL, finished_at INTEGER NOT NULL, exit_code INTEGER, reason TEXT NOT NULL,
    error TEXT NOT NULL, forgotten INTEGER NOT NULL DEFAULT 0, nodes INTEGER NOT NULL DEFAULT 1,
    array_id INTEGER NOT NULL DEFAULT 0, array_index INTEGER NOT NULL DEFAULT 0, array_count INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX tasks_forgotten ON tasks (id) WHERE forgotten = 1;
CREATE INDEX tasks_by_status ON tasks (status, id) WHERE forgotten = 1;
CREATE INDEX tasks_by_tenant ON tasks (tenant, id) WHERE forgotten = 1;
CREATE INDEX tasks_by_priority ON tasks (priority, id) WHERE forgotten = 1;
CREATE TABLE attempts (
    lease_id INTEGER PRIMARY KEY, task_id INTEGER NOT NULL, attempt INTEGER NOT NULL, node TEXT NOT NULL,
    gpu_ids TEXT NOT NULL, placed_at INTEGER NOT NULL, started_at INTEGER NOT NULL DEFAULT 0,
    ended_at INTEGER NOT NULL DEFAULT 0, exit_code INTEGER, reason TEXT NOT NULL DEFAULT '',
    error TEXT NOT NULL DEFAULT '', share_milli INTEGER NOT NULL DEFAULT 1000
);
CREATE INDEX attempts_by_task ON attempts (task_id);
CREATE TABLE task_events (
    task_id INTEGER NOT NULL, journal_index INTEGER NOT NULL, position INTEGER NOT NULL, at INTEGER NOT NULL,
    type TEXT NOT NULL, body TEXT NOT NULL, PRIMARY KEY (task_id, journal_index, position)
) WITHOUT ROWID;
CREATE TABLE node_events (
    node TEXT NOT NULL, journal_index INTEGER NOT NULL, position INTEGER NOT NULL, at INTEGER NOT NULL,
    type TEXT NOT NULL, body TEXT NOT NULL, PRIMARY KEY (node, journal_index, position)
) WITHOUT ROWID;
CREATE INDEX node_events_by_index ON node_events (journal_index);
"""


# Reports search for rows that overlap a time range. An older history gets these indexes at the next write.
TIMES_SQL = """
CREATE INDEX IF NOT EXISTS attempts_by_end ON attempts (ended_at, placed_at);
CREATE INDEX IF NOT EXISTS tasks_by_finish ON tasks (finished_at) WHERE finished_at > 0;
CREATE INDEX IF NOT EXISTS tasks_that_wait ON tasks (id) WHERE status = 'pending';
"""

# The number of forgotten tasks of each kind, so that a page need not count them. Triggers keep it exact. An older
# history is counted once, at the next write. The index finds the newest task of a kind.
COUNTS_SQL = """
CREATE TABLE task_counts (
    tenant TEXT NOT NULL, pool TEXT NOT NULL, priority INTEGER NOT NULL, status TEXT NOT NULL, number INTEGER NOT NULL,
    PRIMARY KEY (tenant, pool, priority, status)
) WITHOUT ROWID;
INSERT INTO task_counts
    SELECT tenant, pool, priority, status, count(*) FROM tasks WHERE forgotten = 1
    GROUP BY tenant, pool, priority, status;
CREATE INDEX tasks_by_kind ON tasks (tenant, pool, priority, status, id) WHERE forgotten = 1;
CREATE TRIGGER task_forgotten AFTER UPDATE OF forgotten ON tasks WHEN NEW.forgotten = 1 AND OLD.forgotten = 0 BEGIN
    INSERT INTO task_counts VALUES (NEW.tenant, NEW.pool, NEW.priority, NEW.status, 1)
        ON CONFLICT DO UPDATE SET number = number + 1;
END;
CREATE TRIGGER task_removed AFTER DELETE ON tasks WHEN OLD.forgotten = 1 BEGIN
    UPDATE task_counts SET number = number - 1
        WHERE tenant = OLD.tenant AND pool = OLD.pool AND priority = OLD.priority AND status = OLD.status;
END;
"""

# What attempts used. An older history gets the table at the next write.
MEASURED_SQL = """
CREATE TABLE IF NOT EXISTS attempt_usage (
    lease_id INTEGER PRIMARY KEY, task_id INTEGER NOT NULL, gpu_samples INTEGER NOT NULL, gpu_percent INTEGER NOT NULL,
    gpu_percent_p95 INTEGER NOT NULL, gpu_peak_mb INTEGER NOT NULL, cpu_ms INTEGER NOT NULL, rss_mb INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS attempt_usage_by_task ON attempt_usage (task_id);
"""

# The cluster of the history. An older history gets it at the next write.
IDENTITY_SQL = (
    "CREATE TABLE IF NOT EXISTS identity (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;"
)

# Columns of tasks that can be filled from the attempts in the file of an earlier version.
FROM_ATTEMPTS_SQL = """
UPDATE tasks SET share_milli = (SELECT min(share_milli) FROM attempts WHERE task_id = tasks.id)
    WHERE id IN (SELECT task_id FROM attempts WHERE share_milli < 1000);
UPDATE tasks SET node_ids = (SELECT json_group_array(node) FROM (
    SELECT node FROM attempts WHERE task_id = tasks.id AND attempt = tasks.attempt ORDER BY lease_id
)) WHERE nodes > 1 AND gpu_ids != '[]';
"""

MAX_KINDS_MERGED = 500  # each is a separate cursor; beyond it a page walks by id


def open_for_writing(path: Path) -> sqlite3.Connection:
    return open_to_write(path, _prepare)


def _prepare(connection: sqlite3.Connection) -> None:
    is_new = is_empty(connection, HISTORY_VERSION)
    use_log(connection)  # transactions lost in a power cut are replayed from the journal
    if is_new:
        make_tables(connection, SCHEMA_SQL, HISTORY_VERSION)
    _complete(connection)
    connection.execute("SELECT count(*) FROM meta").fetchone()


def _complete(connection: sqlite3.Connection) -> None:
    """Adds what later versions introduced to an older history, because a rebuild could reach back less far."""
    columns = {row[1] for row in connection.execute("PRAGMA table_info(attempts)")}
    if "share_milli" not in columns:
        connection.execute("ALTER TABLE attempts ADD COLUMN share_milli INTEGER NOT NULL DEFAULT 1000")
    _add_task_columns(connection)
    connection.executescript(TIMES_SQL)
    connection.executescript(MEASURED_SQL)
    connection.execute(IDENTITY_SQL)
    connection.executescript(AUDIT_SQL)
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'task_counts'").fetchone():
        connection.executescript(f"BEGIN; {COUNTS_SQL} COMMIT;")


def _add_task_columns(connection: sqlite3.Connection) -> None:
    known = {row[1] for row in connection.execute("PRAGMA table_info(tasks)")}
    missing = [name for name in ADDED_COLUMNS if name not in known]
    if not missing:
        return
    added = [f"ALTER TABLE tasks ADD COLUMN {name} {ADDED_COLUMNS[name]};" for name in missing]
    connection.executescript(f"BEGIN; {' '.join(added)} {FROM_ATTEMPTS_SQL} COMMIT;")
