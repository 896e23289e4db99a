"""Reads lists of tasks page by page."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from dgpu.cli.connection import builtins

if TYPE_CHECKING:
    from dgpu.client.sync import Client
    from dgpu.wire.answers import TaskPage

_PAGE = 500


class Collected(NamedTuple):
    rows: list[dict[str, Any]]
    total: int | None  # of tasks; None: unknown, and there are more


def collect(client: Client, filters: Mapping[str, Any], most: int | None) -> Collected:
    """Rows up to a limit (None: all)."""
    rows: list[dict[str, Any]] = []
    total: int | None = 0
    for page in _pages(client, filters, _PAGE if most is None else max(1, min(_PAGE, most))):
        rows += builtins(page.tasks)
        total = page.total if page.total_is_exact else (None if page.next_cursor else len(rows))
        if most is not None and len(rows) >= most:
            return Collected(rows[:most], total)
    return Collected(rows, total)


def count(client: Client, asked: Sequence[Mapping[str, Any]]) -> int | None:
    """None: unknown."""
    pages = [client.page(limit=1, **each) for each in asked]
    return sum(page.total for page in pages) if all(page.total_is_exact for page in pages) else None


def pass_on(client: Client, asked: Sequence[Mapping[str, Any]], output: str) -> None:
    """Prints page by page, newest first, so that 400,000 tasks are never in memory at once."""
    total = 0
    lead = '{"tasks": [\n'
    for each in asked:
        for page in _pages(client, each, _PAGE):
            total += len(page.tasks)
            for row in builtins(page.tasks):
                if output == "name":
                    sys.stdout.write(f"{id_of(row)}\n")
                else:
                    sys.stdout.write(lead + json.dumps(row, ensure_ascii=False))
                    lead = ",\n"
    if output == "json":
        sys.stdout.write(f'{lead if not total else ""}\n], "total": {total}}}\n')


def id_of(row: Mapping[str, Any]) -> str:
    """The id that means this row in every verb: a task, an array, or one task of an array."""
    if row.get("array") is not None:
        return str(row["array_id"])
    return str(row.get("element_id") or row["task_id"])


def _pages(client: Client, filters: Mapping[str, Any], size: int) -> Iterator[TaskPage]:
    cursor: str | None = None
    while True:
        page = client.page(limit=size, cursor=cursor, **filters)
        yield page
        cursor = page.next_cursor
        if cursor is None:
            return
