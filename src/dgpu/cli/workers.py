from __future__ import annotations

from typing import Annotated

import typer

from dgpu.cli.connection import builtins, connect
from dgpu.cli.failures import note
from dgpu.cli.flags import flags_of
from dgpu.cli.formats import duration, memory, since
from dgpu.cli.output import Column, Row, print_rows, repeat

app = typer.Typer(add_completion=False)


def models_of(row: Row) -> str:
    return ", ".join(
        f"{each['name']} (loading)" if each["loading"] else str(each["name"]) for each in row["models"]
    )


def _memory(row: Row) -> str:
    return memory(sum(each["memory_mb"] for each in row["models"]) or None)


COLUMNS = (
    Column("ID", lambda row: str(row["task_id"])),
    Column("STATUS", lambda row: str(row["status"])),
    Column("IDLE", lambda row: duration(since(row["idle_since"])) if row["idle_since"] else "", right=True),
    Column("NODE", lambda row: str(row["node"] or ""), stretches=True),
    Column("GPUS", lambda row: ",".join(str(each) for each in row["gpus"])),
    Column("MODELS", models_of, stretches=True),
    Column("RUNS", lambda row: str(row["running"] or "")),
    Column("QUEUED", lambda row: str(row["queued"]), right=True),
    Column("MODEL MEM", _memory, right=True, wide=True),
    Column("TENANT", lambda row: str(row["tenant_id"]), wide=True),
    Column("APP", lambda row: str(row["app"]), wide=True),
)


@app.command()
def workers(
    ctx: typer.Context,
    tenant: Annotated[
        str | None, typer.Option("--tenant", "-A", metavar="T", help="Only of this tenant.")
    ] = None,
) -> None:
    """Workers: processes that keep GPUs and loaded models between calls of functions.

    A worker gives its GPUs back after some idle time, or as soon as another task needs them.
    """
    flags = flags_of(ctx)
    client = connect(flags)

    def draw() -> None:
        rows = builtins(client.workers(tenant=tenant))
        print_rows({"workers": rows}, rows, COLUMNS, "task_id", flags)
        if flags.is_table and not rows:
            note("No workers. One starts with the first call of a function: dgpu call --help")

    repeat(draw, flags)
