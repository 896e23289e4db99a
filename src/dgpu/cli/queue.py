from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from dgpu.cli.connection import builtins, connect
from dgpu.cli.failures import note
from dgpu.cli.flags import flags_of
from dgpu.cli.formats import clock, duration, since
from dgpu.cli.output import Column, print_rows, repeat
from dgpu.cli.ps import gpus_of, name_of

app = typer.Typer(add_completion=False)


def starts_by(row: Mapping[str, Any]) -> str:
    if not row.get("reserved_nodes"):
        return ""
    return clock(row["reserved_start"]) if row["reserved_start"] else "unknown"


COLUMNS = (
    Column("PLACE", lambda row: str(row["position"]), right=True),
    Column("ID", lambda row: str(row["task_id"])),
    Column("NAME", name_of, stretches=True),
    Column("PRI", lambda row: str(row["priority"]), right=True),
    Column("GPUS", gpus_of, right=True),
    Column("WAITED", lambda row: duration(since(row["created_at"])), right=True),
    Column("TENANT", lambda row: str(row["tenant_id"]), wide=True),
    Column("POOL", lambda row: str(row["pool"]), wide=True),
    Column("SUBMITTED", lambda row: clock(row["created_at"]), wide=True),
    Column("NOT BEFORE", lambda row: clock(row["eligible_at"])),
    Column("STARTS BY", starts_by),
)


@app.command()
def queue(
    ctx: typer.Context,
    most: Annotated[
        int, typer.Option("--limit", metavar="N", min=1, max=1000, help="Maximum number of tasks.")
    ] = 100,
) -> None:
    """Waiting tasks in queue order."""
    flags = flags_of(ctx)
    client = connect(flags)

    def draw() -> None:
        page = builtins(client.queue(limit=most))
        print_rows(page, page["queue"], COLUMNS, "task_id", flags)
        if flags.is_table and not page["queue"]:
            note("No tasks are waiting.")
        elif flags.is_table and page["total"] > len(page["queue"]):
            note(f"{page['total'] - len(page['queue']):,} more; see --limit")

    repeat(draw, flags)
