"""Reads the audit log, newest first, and leaves out what its reader may not know."""

from __future__ import annotations

import sqlite3
from typing import Any, NamedTuple

import msgspec

from dgpu.service.history.audit_rows import Kind
from dgpu.service.history.filters import all_of
from dgpu.service.history.reader import History

MAX_LOOKED_AT = 200_000  # entries for one page; its cursor continues

_NEWEST_FIRST = "ORDER BY at DESC, journal_index DESC, position DESC"

Place = tuple[int, int, int]  # time, group and position: the order of the entries


class AuditFilters(NamedTuple):
    since: int = 0
    until: int = 1 << 62
    user: str | None = None
    action: str | None = None  # `task.change`, or `task` for all of them
    result: str | None = None
    tenant_id: str | None = None
    tenants: tuple[str, ...] | None = None  # those of the reader; None: all


class PastAudit(msgspec.Struct, frozen=True, kw_only=True):
    at: int
    journal_index: int
    position: int
    user: str
    role: str
    source: str
    token_id: str
    tenants: tuple[str, ...] | None
    action: str
    call: str
    subject: str
    tenant_id: str
    tasks: int
    origin: str
    request_id: str
    result: str
    status: int
    code: str
    count: int
    since: int

    @property
    def place(self) -> Place:
        return self.at, self.journal_index, self.position


class AuditPart(NamedTuple):
    entries: list[PastAudit]
    stopped: Place | None  # None: the end was reached


def read_audit(history: History, filters: AuditFilters, before: Place | None, limit: int) -> AuditPart:
    """From below `before`. Looks at a bounded number of entries, so a page may be short and not the last."""
    if not history.rows("SELECT 1 FROM sqlite_master WHERE name = 'audit'", ()):
        return AuditPart([], None)  # an older history, before its first write
    where = ["at >= ?", "at < ?"]
    values: list[Any] = [filters.since, filters.until]
    if before is not None:
        where.append("(at, journal_index, position) < (?, ?, ?)")
        values += before
    if filters.result in {"refused", "failed"}:
        where.append("kind = ?")
        values.append(Kind.REFUSAL)
    found, wanted = _matching(filters)
    stopped = _place_of(history, where, values, skipped=MAX_LOOKED_AT - 1) if found else None
    if stopped is not None:
        found.append("(at, journal_index, position) >= (?, ?, ?)")
        wanted += stopped
    query = f"SELECT * FROM audit {all_of(where + found)} {_NEWEST_FIRST} LIMIT ?"  # noqa: S608 - constant text
    entries = [_entry(row) for row in history.rows(query, (*values, *wanted, limit))]
    if len(entries) == limit:
        stopped = entries[-1].place
    return AuditPart([_told_to(filters.tenants, each) for each in entries], stopped)


def _place_of(history: History, where: list[str], values: list[Any], *, skipped: int) -> Place | None:
    query = f"SELECT at, journal_index, position FROM audit {all_of(where)} {_NEWEST_FIRST} LIMIT 1 OFFSET ?"  # noqa: S608
    rows = history.rows(query, (*values, skipped))
    return tuple(rows[0]) if rows else None


def _matching(filters: AuditFilters) -> tuple[list[str], list[Any]]:
    where: list[str] = []
    values: list[Any] = []
    for column in ("user", "result", "tenant_id"):
        wanted = getattr(filters, column)
        if wanted is not None:
            where.append(f"{column} = ?")
            values.append(wanted)
    if filters.action is not None:
        where.append("(action = ? OR action LIKE ? || '.%')")
        values += [filters.action, filters.action]
    if filters.tenants is not None:
        own = ", ".join("?" * len(filters.tenants))
        is_own = f"(tenants LIKE '[_%_]' AND NOT EXISTS (SELECT 1 FROM json_each(tenants) WHERE value NOT IN ({own})))"  # noqa: S608
        # The name of another tenant's user is not shown, so it must not be found either.
        where.append(is_own if filters.user is not None else f"(tenant_id IN ({own}) OR {is_own})")
        values += filters.tenants if filters.user is not None else filters.tenants * 2
    return where, values


def _entry(row: sqlite3.Row) -> PastAudit:
    fields = dict(row)
    del fields["kind"]
    fields["tenants"] = msgspec.json.decode(fields["tenants"])
    return msgspec.convert(fields, PastAudit)


def _told_to(tenants: tuple[str, ...] | None, entry: PastAudit) -> PastAudit:
    """A reader of some tenants learns no names of others: neither of the user nor of the tenant."""
    if tenants is None:
        return entry
    if entry.tenant_id not in tenants:
        entry = msgspec.structs.replace(entry, tenant_id="")
    if entry.tenants and set(entry.tenants) <= set(tenants):
        return entry
    return msgspec.structs.replace(
        entry, user="", source="", token_id="", tenants=(), origin="", request_id=""
    )
