from __future__ import annotations

import contextlib
import json
import shlex
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dgpu.cli.arguments import command_text, parse_priority
from dgpu.cli.connection import builtins, connect
from dgpu.cli.failures import note
from dgpu.cli.flags import Flags, flags_of
from dgpu.cli.formats import between, clock, duration, limit, memory, since
from dgpu.cli.output import Column, Row, print_rows, repeat
from dgpu.client.language import told, waiting
from dgpu.wire import isolation

if TYPE_CHECKING:
    from dgpu.client.sync import Client
    from dgpu.wire.answers import TaskPage

app = typer.Typer(add_completion=False)

STATES = ("pending", "running", "success", "failed", "cancelled")
_SCREEN_ROWS = 100
_PIPE_ROWS = 10_000  # a longer table takes many seconds
_PAGE = 500


def name_of(row: Row) -> str:
    name = str(row["name"] or command_text(row["command"]) or ("allocation" if row["allocation"] else ""))
    return name if row["array_index"] is None else f"[{row['array_index']}] {name}"


def gpus_of(row: Row) -> str:
    """For several nodes: nodes x GPUs per node."""
    return str(row["gpu_count"]) if row["nodes"] == 1 else f"{row['nodes']}x{row['gpu_count']}"


def place_of(row: Row) -> str:
    """Where the task runs, why it waits, or how it ended."""
    if row["status"] == "pending":
        return waiting(row["blockers"], row["waiting"]) or str(row["reason"] or "waits for its turn")
    if row["status"] == "running":
        stopping = ", being cancelled" if row["cancelling"] else ""
        where = (
            waiting(row["blockers"], row["waiting"])
            or ", ".join(row["allocated_nodes"])
            or row["node"]
            or "being placed"
        )
        return f"{where}{stopping}"
    if row["status"] == "success":
        return str(row["node"] or "")
    return told("ended", str(row["reason"]), row, str(row["error"] or row["reason"] or ""))


def time_of(row: Row) -> str:
    """How long the task has waited, runs or ran."""
    if row["status"] == "pending":
        return duration(since(row["created_at"]))
    if row["status"] == "running":
        return duration(since(row["started_at"])) or "starting"
    return duration(between(row["started_at"], row["finished_at"]))


def exit_of(row: Row) -> str:
    return "" if row["exit_code"] is None else str(row["exit_code"])


COLUMNS = (
    Column("ID", lambda row: str(row["task_id"])),
    Column("NAME", name_of, stretches=True),
    Column("STATUS", lambda row: str(row["status"])),
    Column("PRI", lambda row: str(row["priority"]), right=True),
    Column("GPUS", gpus_of, right=True),
    Column("TIME", time_of, right=True),
    Column("TENANT", lambda row: str(row["tenant_id"]), wide=True),
    Column("POOL", lambda row: str(row["pool"]), wide=True),
    Column("MEM", lambda row: memory(row["gpu_memory_mb"] or None), wide=True, right=True),
    Column("LIMIT", lambda row: limit(row["timeout_seconds"]), wide=True, right=True),
    Column("ARRAY", lambda row: str(row["array_id"] or ""), wide=True),
    Column("TRY", lambda row: str(row["attempt"]), wide=True, right=True),
    Column("EXIT", exit_of, wide=True, right=True),
    Column("SUBMITTED", lambda row: clock(row["created_at"]), wide=True),
    Column("WHERE OR WHY", place_of, stretches=True),
    Column("GPU IDS", lambda row: ",".join(row["allocated_gpus"]), wide=True),
)


@app.command()
def ps(
    ctx: typer.Context,
    all_tasks: Annotated[bool, typer.Option("--all", "-a", help="Include ended tasks.")] = False,
    tenant: Annotated[
        str | None, typer.Option("--tenant", "-A", metavar="T", help="Only this tenant.")
    ] = None,
    states: Annotated[
        list[str] | None, typer.Option("--status", "-s", metavar="STATE", help=f"One of {', '.join(STATES)}.")
    ] = None,
    pool: Annotated[str | None, typer.Option("--pool", metavar="online|batch")] = None,
    priority: Annotated[
        str | None, typer.Option("--priority", "-p", metavar="P", help="Only this priority.")
    ] = None,
    most: Annotated[
        int | None,
        typer.Option(
            "--limit",
            metavar="N",
            min=0,
            help="Maximum number of rows; 0: all. [100; in a pipe 10,000]",
        ),
    ] = None,
) -> None:
    """Running and waiting tasks, with the place of the run or the reason of the wait. -a includes ended tasks."""
    flags = flags_of(ctx)
    for state in states or ():
        if state not in STATES:
            raise typer.BadParameter(f"{state!r} is not one of {', '.join(STATES)}", param_hint="--status")
    wanted = tuple(states) if states else (() if all_tasks else ("running", "pending"))
    filters = {"tenant": tenant, "pool": pool, "priority": parse_priority(priority) if priority else None}
    if most is None:
        most = (_SCREEN_ROWS if sys.stdout.isatty() else _PIPE_ROWS) if flags.is_table else 0
    client = connect(flags)
    said = ["-a"] if all_tasks else []
    for flag, value in (
        ("-A", tenant),
        *(("-s", state) for state in states or ()),
        ("--pool", pool),
        ("-p", priority),
    ):
        said += [flag, value] if value else []
    whole = shlex.join(["dgpu", "ps", *said, "--limit", "0"])
    repeat(lambda: _draw(client, wanted, filters, most, whole, flags), flags)


def _draw(
    client: Client, states: tuple[str, ...], filters: dict[str, Any], most: int, whole: str, flags: Flags
) -> None:
    """`whole` is the command that shows the complete list."""
    asked: list[dict[str, Any]] = [{**filters, "status": state} for state in states or (None,)]
    if not most and flags.output in {"json", "name"} and _count(client, asked) > _PIPE_ROWS:
        _pass_on(client, asked, flags)
        return
    rows: list[dict[str, Any]] = []
    total = 0
    for each in asked:
        found, number = _collect(client, each, most - len(rows) if most else None)
        rows += sorted(found, key=_number)  # pages have the newest first; a reader looks at the end
        total += number
    print_rows({"tasks": rows, "total": total}, rows, COLUMNS, "task_id", flags)
    if flags.is_table:
        _tell(len(rows), total, "running" in states, whole)
        _tell_boundary(client)


def _count(client: Client, asked: Sequence[dict[str, Any]]) -> int:
    return sum(client.page(limit=1, **each).total for each in asked)


def _collect(client: Client, filters: dict[str, Any], most: int | None) -> tuple[list[dict[str, Any]], int]:
    """Rows of the server's pages up to a limit (None: all), and the total number."""
    rows: list[dict[str, Any]] = []
    total = 0
    for page in _pages(client, filters, _PAGE if most is None else max(1, min(_PAGE, most))):
        rows += builtins(page.tasks)
        total = page.total
        if most is not None and len(rows) >= most:
            return rows[:most], total
    return rows, total


def _pages(client: Client, filters: dict[str, Any], size: int) -> Iterator[TaskPage]:
    cursor: str | None = None
    while True:
        page = client.page(limit=size, cursor=cursor, **filters)
        yield page
        cursor = page.next_cursor
        if cursor is None:
            return


def _pass_on(client: Client, asked: Sequence[dict[str, Any]], flags: Flags) -> None:
    """Prints page by page, newest first, so that 400,000 tasks are never in memory at once."""
    total = 0
    lead = '{"tasks": [\n'
    for each in asked:
        number = 0
        for page in _pages(client, each, _PAGE):
            number = page.total
            for row in builtins(page.tasks):
                if flags.output == "name":
                    sys.stdout.write(f"{row['task_id']}\n")
                else:
                    sys.stdout.write(lead + json.dumps(row, ensure_ascii=False))
                    lead = ",\n"
        total += number
    if flags.output == "json":
        sys.stdout.write(f'\n], "total": {total}}}\n')


def _tell_boundary(client: Client) -> None:
    from dgpu.client.errors import DgpuError

    with contextlib.suppress(DgpuError):  # the list is there already
        if notice := isolation.NOTICES.get(client.whoami().isolation):
            note(notice)


def _number(row: Row) -> int:
    return int(row["task_id"].removeprefix("task-"))


def _tell(shown: int, total: int, only_active: bool, whole: str) -> None:
    if not total and only_active:
        note("No running or waiting tasks. Ended tasks: dgpu ps -a")
    elif not total:
        note("No such task.")
    elif shown < total:
        note(f"… {total - shown:,} more ({whole})")
