from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from dgpu.cli.connection import builtins, connect
from dgpu.cli.failures import note
from dgpu.cli.flags import Flags, flags_of
from dgpu.cli.formats import clock, in_our_zone, plural
from dgpu.cli.output import Column, Row, print_rows
from dgpu.client import Client

app = typer.Typer(add_completion=False)

RESULTS = ("done", "refused", "failed")
FORMATS = ("table", "json", "jsonl")
_PAGE = 1_000
_ROWS = 100


def _text(key: str) -> Any:
    return lambda row: str(row[key] or "")


def _user(row: Row) -> str:
    return str(row["user"] or (f"({row['role']})" if row["role"] else "(unknown)"))


def _result(row: Row) -> str:
    return str(row["code"] or row["result"])


def _times(row: Row) -> str:
    return f"x{row['count']:,}" if row["count"] > 1 else ""


def _subject(row: Row) -> str:
    more = f" (+{row['tasks'] - 1:,})" if row["tasks"] > 1 else ""
    return f"{row['subject'] or ''}{more}".strip()


COLUMNS = (
    Column("TIME", lambda row: clock(row["at"])),
    Column("USER", _user, stretches=True),
    Column("ROLE", _text("role"), wide=True),
    Column("TOKEN", _text("token_id"), wide=True),
    Column("ORIGIN", _text("origin")),
    Column("ACTION", _text("action")),
    Column("SUBJECT", _subject, stretches=True),
    Column("TENANT", _text("tenant_id"), stretches=True),
    Column("RESULT", _result),
    Column("TIMES", _times, right=True),
    Column("CALL", _text("call"), wide=True),
    Column("REQUEST", _text("request_id"), wide=True),
)


@app.command()
def audit(
    ctx: typer.Context,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="T", help="An age (6h), 14:05, or 2026-07-30 12:00 (local time)."),
    ] = None,
    until: Annotated[str | None, typer.Option("--until", metavar="T", help="As --since. [now]")] = None,
    user: Annotated[str | None, typer.Option("--user", "-u", metavar="USER")] = None,
    action: Annotated[
        str | None,
        typer.Option("--action", metavar="ACTION", help="task.change, or task for all actions on tasks."),
    ] = None,
    result: Annotated[str | None, typer.Option("--result", "-r", metavar="|".join(RESULTS))] = None,
    tenant: Annotated[
        str | None, typer.Option("--tenant", "-A", metavar="T", help="Entries about this tenant.")
    ] = None,
    most: Annotated[
        int | None,
        typer.Option(
            "--limit", metavar="N", min=0, help="Maximum number of entries; 0: all. [100; jsonl: all]"
        ),
    ] = None,
    form: Annotated[
        str, typer.Option("--format", metavar="|".join(FORMATS), help="jsonl: one JSON document per line.")
    ] = "table",
) -> None:
    """The audit log: changes and refused attempts, with user, origin and result. The newest come last.

    jsonl prints the newest first, page by page, and suits an export of everything.
    """
    if result is not None and result not in RESULTS:
        raise typer.BadParameter(f"{result!r} is not one of {', '.join(RESULTS)}", param_hint="--result")
    if form not in FORMATS:
        raise typer.BadParameter(f"{form!r} is not one of {', '.join(FORMATS)}", param_hint="--format")
    flags = flags_of(ctx)
    if form == "json":
        flags.output = "json"
    filters = {
        "since": since and in_our_zone(since),
        "until": until and in_our_zone(until),
        "user": user,
        "action": action,
        "result": result,
        "tenant": tenant,
    }
    if form == "jsonl":
        _print_lines(connect(flags), filters, most or 0)
    else:
        _print(connect(flags), filters, _ROWS if most is None else most, flags)


def _print_lines(client: Client, filters: dict[str, Any], most: int) -> None:
    for page in _pages(client, filters, most):
        sys.stdout.write("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in page["entries"]))


def _print(client: Client, filters: dict[str, Any], most: int, flags: Flags) -> None:
    rows: list[dict[str, Any]] = []
    last: dict[str, Any] = {}
    for last in _pages(client, filters, most):
        rows += last["entries"]
    rows.reverse()  # a reader looks at the end
    document = {"entries": rows, "next_cursor": last["next_cursor"], "history_behind": last["history_behind"]}
    print_rows(document, rows, COLUMNS, "id", flags)
    if not flags.is_table:
        return
    if not rows:
        note("No such entry.")
    elif last["next_cursor"] is not None:
        note(f"The newest {plural(len(rows), 'entry', 'entries')}. All: --limit 0")
    if last["history_behind"]:
        note(f"The newest are missing: the history is {plural(last['history_behind'], 'group')} behind.")


def _pages(client: Client, filters: dict[str, Any], most: int) -> Iterator[dict[str, Any]]:
    """At most this many entries; 0: all. A page may be empty and not the last."""
    cursor: str | None = None
    got = 0
    while True:
        size = min(_PAGE, most - got) if most else _PAGE
        page = builtins(client.audit(**filters, limit=size, cursor=cursor))
        yield page
        got += len(page["entries"])
        cursor = page["next_cursor"]
        if cursor is None or (most and got >= most):
            return
