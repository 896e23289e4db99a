from __future__ import annotations

import csv
import sys
from typing import Annotated, Any

import typer

from dgpu.cli.connection import builtins, connect
from dgpu.cli.failures import note
from dgpu.cli.flags import flags_of
from dgpu.cli.formats import clock, duration, in_our_zone, memory, period, plural
from dgpu.cli.output import Column, Row, print_rows

app = typer.Typer(add_completion=False)

KEYS = ("tenant", "pool", "user")
TASK = ["task"]
_FORMULA_SIGNS = ("=", "+", "-", "@", "\t", "\r")
_LONG_LAG_SECONDS = 5
FORMATS = ("table", "csv", "json")
_NUMBERS = (
    "gpu_hours",
    "tasks",
    "attempts",
    "started",
    "running",
    "waiting",
    "succeeded",
    "failed",
    "cancelled",
    "wait_mean_seconds",
    "wait_max_seconds",
    "run_seconds",
    "gpu_percent",
    "gpu_peak_mb",
)
_OF_TASK = ("name", "status", "tenant", "pool", "user")


def _key(key: str) -> Any:
    return lambda row: str(row[key]) if row[key] else "-"


def _count(key: str) -> Any:
    return lambda row: f"{row[key]:,}"


NUMBERS = (
    Column("GPU-HOURS", lambda row: f"{row['gpu_hours']:,.2f}", right=True),
    Column("TASKS", _count("tasks"), right=True),
    Column("ATTEMPTS", _count("attempts"), right=True, wide=True),
    Column("STARTED", _count("started"), right=True, wide=True),
    Column("RUNNING", _count("running"), right=True),
    Column("WAITING", _count("waiting"), right=True),
    Column("SUCCESS", _count("succeeded"), right=True),
    Column("FAILED", _count("failed"), right=True),
    Column("CANCELLED", _count("cancelled"), right=True),
    Column("WAIT", lambda row: duration(row["wait_mean_seconds"]), right=True),
    Column("LONGEST", lambda row: duration(row["wait_max_seconds"]), right=True),
)


TASK_COLUMNS = (
    Column("ID", _key("task")),
    Column("NAME", _key("name"), stretches=True),
    Column("STATUS", _key("status")),
    Column("TENANT", _key("tenant"), wide=True),
    Column("USER", _key("user")),
    Column("GPU-HOURS", lambda row: f"{row['gpu_hours']:,.2f}", right=True),
    Column("UTIL", lambda row: "" if row["gpu_percent"] is None else f"{row['gpu_percent']}%", right=True),
    Column("MEM-PEAK", lambda row: memory(row["gpu_peak_mb"]), right=True),
    Column("WAITED", lambda row: duration(row["wait_mean_seconds"]), right=True),
    Column("RAN", lambda row: duration(row["run_seconds"]), right=True),
    Column("ATTEMPTS", _count("attempts"), right=True, wide=True),
)


@app.command()
def report(
    ctx: typer.Context,
    since: Annotated[
        str,
        typer.Option("--since", metavar="T", help="An age (6h), 14:05, or 2026-07-30 12:00 (local time)."),
    ] = "30d",
    until: Annotated[str | None, typer.Option("--until", metavar="T", help="As --since. [now]")] = None,
    by: Annotated[
        str, typer.Option("--by", metavar="tenant|pool|user|task", help="Or several: tenant,pool.")
    ] = "tenant",
    form: Annotated[
        str, typer.Option("--format", metavar="|".join(FORMATS), help="csv has a header line; see below.")
    ] = "table",
) -> None:
    """GPU-hours and waiting times by tenant, pool or user, or of each task. Running tasks count up to now.

    TASKS ran during the period. SUCCESS, FAILED and CANCELLED ended in it, even if they never ran: a task that was
    cancelled while it waited counts in CANCELLED but not in TASKS. WAITING is the current number.

    In CSV, a text that looks like a formula (it begins with = + - @ or a tab) gets a leading apostrophe.
    """
    keys = list(dict.fromkeys(key.strip() for key in by.split(",") if key.strip()))
    if keys != TASK and (not keys or set(keys) - set(KEYS)):
        expected = "task, which stands alone" if "task" in keys else f"one of {', '.join(KEYS)}, task"
        raise typer.BadParameter(f"{by!r} is not {expected}", param_hint="--by")
    if form not in FORMATS:
        raise typer.BadParameter(f"{form!r} is not one of {', '.join(FORMATS)}", param_hint="--format")
    flags = flags_of(ctx)
    if form == "json":
        flags.output = "json"
    until = until and in_our_zone(until)
    answer = builtins(connect(flags).usage(since=in_our_zone(since), until=until, by=keys))
    if form == "csv":
        _write_csv(answer["rows"], keys)
    else:
        _show(answer, keys, flags)
    behind = answer["history_behind"]
    if behind:
        seconds = answer["history_behind_seconds"]
        note(
            f"These figures are not complete: the history is {plural(behind, 'group')} ({seconds:.1f} s) behind."
            + (" See the scheduler's log." if seconds >= _LONG_LAG_SECONDS else "")
        )
    if answer["truncated"]:
        note(f"Only the first {len(answer['rows']):,} rows are shown; the total counts all.")


def _show(answer: dict[str, Any], keys: list[str], flags: Any) -> None:
    grouped = tuple(Column(key.upper(), _key(key), stretches=True) for key in keys) + NUMBERS
    columns = TASK_COLUMNS if keys == TASK else grouped
    rows: list[Row] = list(answer["rows"])
    if flags.is_table and len(rows) > 1:
        rows.append(
            {**answer["total"], keys[0]: "(total)", **({"wait_mean_seconds": None} if keys == TASK else {})}
        )
    print_rows(answer, rows, columns, keys[0], flags)
    if flags.is_table:
        note(f"{period(answer['since'], answer['until'])}" + ("" if rows else ": no task ran."))
        begins = answer["history_since"]
        if begins is not None and begins > answer["since"]:
            note(f"The history begins at {clock(begins)}: tasks that ended earlier are not counted.")


def _write_csv(rows: list[dict[str, Any]], keys: list[str]) -> None:
    keys = [*keys, *_OF_TASK] if keys == TASK else keys
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow([*keys, *_NUMBERS])
    for row in rows:
        texts = [_harmless(row[key] or "") for key in keys]
        writer.writerow([*texts, *("" if row[name] is None else row[name] for name in _NUMBERS)])


def _harmless(text: str) -> str:
    """Users choose their labels, and a spreadsheet would evaluate a label such as =HYPERLINK(...)."""
    return f"'{text}" if text.startswith(_FORMULA_SIGNS) else text
