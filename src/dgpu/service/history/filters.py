"""The filters of lists in the history, and their SQLite conditions."""

from __future__ import annotations

import sqlite3
from typing import Any

import msgspec

from dgpu.core.model.array import MAX_TASKS
from dgpu.core.model.ids import NO_TASK, TaskId, TenantId
from dgpu.core.model.task import Pool, TaskStatus

ENDED = "status NOT IN ('pending', 'running')"
USER_LABEL = "user"  # set by the service or by the client of a submit

IDS_OF_KIND = """
    SELECT id FROM tasks
    WHERE forgotten = 1 AND tenant = ? AND pool = ? AND priority = ? AND status = ? AND id < ? AND id > ?
    ORDER BY id DESC"""


class TaskFilters(msgspec.Struct, frozen=True, kw_only=True):
    status: TaskStatus | None = None
    priority: int | None = None
    tenant_id: TenantId | None = None
    pool: Pool | None = None
    tenants: tuple[str, ...] | None = None  # those of the reader; None: all


class Search(msgspec.Struct, frozen=True, kw_only=True):
    """Search terms beyond the filters."""

    words: str = ""  # in the id, name, tenant or command; case does not matter
    node_id: str = ""
    gpu_id: str = ""
    name: str = ""  # `*` and `?` stand for any characters
    labels: tuple[tuple[str, str], ...] = ()  # all of them
    array_id: TaskId = NO_TASK
    statuses: tuple[TaskStatus, ...] = ()  # any of them


def where_of(filters: TaskFilters, *, live: bool, ended: bool = False) -> tuple[list[str], list[Any]]:
    columns = {
        "status": filters.status,
        "priority": filters.priority,
        "tenant": filters.tenant_id,
        "pool": filters.pool,
    }
    wanted = {column: value for column, value in columns.items() if value is not None}
    where = ([] if live else ["forgotten = 1"]) + ([ENDED] if ended else [])
    where += [f"{column} = ?" for column in wanted]
    values: list[Any] = [value if isinstance(value, int) else str(value) for value in wanted.values()]
    if filters.tenants is not None:
        where.append(f"tenant IN ({','.join('?' * len(filters.tenants))})")
        values += filters.tenants
    return where, values


def kind_of(row: sqlite3.Row) -> tuple[Any, ...]:
    return row["tenant"], row["pool"], row["priority"], row["status"]


def bounds_of(search: Search) -> tuple[list[str], list[Any]]:
    """Conditions that bound the tasks to examine. Ids of an array are consecutive."""
    if not search.array_id:
        return [], []
    return ["id >= ?", f"id < ? + {MAX_TASKS}", "array_id = ?"], [search.array_id] * 3


def search_where(search: Search) -> tuple[list[str], list[Any]]:
    where = [ENDED]
    values: list[Any] = []
    if search.words:
        plain = search.words.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
        columns = ("'task-' || id", "name", "tenant", "command")
        where.append("(" + " OR ".join(f"{column} LIKE ? ESCAPE '\\'" for column in columns) + ")")
        values += [f"%{plain}%"] * len(columns)
    if search.node_id:
        where.append("node = ?")
        values.append(search.node_id)
    if search.gpu_id:
        where.append("instr(gpu_ids, ?)")
        values.append(msgspec.json.encode(search.gpu_id).decode())
    if search.name:
        where.append("name GLOB ?")
        values.append(search.name.replace("[", "[[]"))
    for label in search.labels:
        where.append("EXISTS (SELECT 1 FROM json_each(labels) WHERE key = ? AND value = ?)")
        values += label
    if search.statuses:
        where.append(f"status IN ({','.join('?' * len(search.statuses))})")
        values += [str(status) for status in search.statuses]
    return where, values


def all_of(where: list[str]) -> str:
    return "WHERE " + " AND ".join(where) if where else ""
