"""The audit log in the history: its table, and the rows that the follower writes and trims."""

from __future__ import annotations

import enum
import sqlite3
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from dgpu.core.events import Audited
from dgpu.core.model.audit import AuditEntry
from dgpu.service.history.rows import insert_into, text
from dgpu.service.sqlite_files import transaction

_TRIM_ROWS = 5_000  # in one transaction
_TRIM_SLACK = 1_000  # so that trimming does not run for every entry
SUBMIT: Final = "task.submit"

# The key begins with the time: after a lost tail of the journal, group numbers are used again. An older history gets
# the table at the next write.
AUDIT_SQL = """
CREATE TABLE IF NOT EXISTS audit (
    at INTEGER NOT NULL, journal_index INTEGER NOT NULL, position INTEGER NOT NULL, kind INTEGER NOT NULL,
    user TEXT NOT NULL, role TEXT NOT NULL, source TEXT NOT NULL, token_id TEXT NOT NULL, tenants TEXT NOT NULL,
    action TEXT NOT NULL, call TEXT NOT NULL, subject TEXT NOT NULL, tenant_id TEXT NOT NULL, tasks INTEGER NOT NULL,
    origin TEXT NOT NULL, request_id TEXT NOT NULL, result TEXT NOT NULL, status INTEGER NOT NULL, code TEXT NOT NULL,
    count INTEGER NOT NULL, since INTEGER NOT NULL, PRIMARY KEY (at, journal_index, position)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS audit_by_kind ON audit (kind, at);
"""
_INSERT = insert_into("audit", (
    "at", "journal_index", "position", "kind", "user", "role", "source", "token_id", "tenants", "action", "call",
    "subject", "tenant_id", "tasks", "origin", "request_id", "result", "status", "code", "count", "since",
))  # fmt: skip


class Kind(enum.IntEnum):
    """Each kind has its own limit: a flood of submits or of refusals pushes nothing else out."""

    SUBMIT = 0
    CHANGE = 1
    REFUSAL = 2


class AuditLimits(msgspec.Struct, frozen=True, kw_only=True):
    max_entries: int = 1_000_000  # of each kind
    max_age_ms: int = 365 * 86_400_000


class AuditRows:
    """Rows that wait for the next commit of the history, and the number of stored ones."""

    def __init__(self, connection: sqlite3.Connection, limits: AuditLimits, *, index: int) -> None:
        self._connection = connection
        self._limits = limits
        self._waiting: list[tuple[Any, ...]] = []
        # Rows beyond the index were written only in part and will be written again.
        counted = "SELECT kind, count(*) FROM audit WHERE journal_index <= ? GROUP BY kind"
        self._stored = dict.fromkeys(Kind, 0) | {
            Kind(kind): number for kind, number in connection.execute(counted, (index,))
        }

    def __len__(self) -> int:
        return len(self._waiting)

    def note(self, event: Audited, *, index: int, position: int) -> None:
        entry = event.entry
        kind = _kind(entry)
        self._waiting.append((
            event.at, index, position, kind, entry.user, entry.role, entry.source, entry.token_id, text(entry.tenants),
            entry.action, entry.call, entry.subject, entry.tenant_id, entry.tasks, entry.origin, entry.request_id,
            _result(entry), entry.status, entry.code, entry.count, entry.since,
        ))  # fmt: skip

    def write(self, max_rows: int | None = None) -> int:
        """Inside the caller's transaction. Returns the number for `written`."""
        rows = self._waiting if max_rows is None else self._waiting[:max_rows]
        self._connection.executemany(_INSERT, rows)
        return len(rows)

    def written(self, number: int) -> None:
        """The transaction is committed."""
        for row in self._waiting[:number]:
            self._stored[row[3]] += 1
        del self._waiting[:number]

    def added(self, numbers: Mapping[int, int]) -> None:
        """Rows of another scheduler's history are stored, by kind."""
        for kind, number in numbers.items():
            self._stored[Kind(kind)] += number

    def trim(self, now: int) -> int:
        """Removes a portion of the oldest entries of each kind, beyond the limits. Returns the number removed."""
        return sum(self._trim_kind(kind, now) for kind in Kind)

    def _trim_kind(self, kind: Kind, now: int) -> int:
        excess = self._stored[kind] - self._limits.max_entries
        oldest = "SELECT at, journal_index, position FROM audit WHERE kind = ? "
        if excess >= min(_TRIM_SLACK, max(1, self._limits.max_entries // 10)):
            query, values = f"{oldest} ORDER BY at LIMIT ?", (kind, min(excess, _TRIM_ROWS))
        else:
            query = f"{oldest} AND at < ? ORDER BY at LIMIT ?"
            values = (kind, now - self._limits.max_age_ms, _TRIM_ROWS)  # type: ignore[assignment]
        doomed = self._connection.execute(query, values).fetchall()
        if doomed:
            with transaction(self._connection) as connection:
                connection.executemany(
                    "DELETE FROM audit WHERE at = ? AND journal_index = ? AND position = ?", doomed
                )
            self._stored[kind] -= len(doomed)
        return len(doomed)


def _kind(entry: AuditEntry) -> Kind:
    if entry.code:
        return Kind.REFUSAL
    return Kind.SUBMIT if entry.action == SUBMIT else Kind.CHANGE


def _result(entry: AuditEntry) -> str:
    if not entry.code:
        return "done"
    return "failed" if entry.status >= 500 else "refused"
