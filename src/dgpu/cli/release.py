from __future__ import annotations

import typer

from dgpu.cli.changing import Array, Ids, change_tasks
from dgpu.cli.connection import connect
from dgpu.cli.flags import flags_of

app = typer.Typer(add_completion=False)


@app.command()
def release(ctx: typer.Context, ids: Ids, array: Array = False) -> None:
    """Release held tasks."""
    flags = flags_of(ctx)
    client = connect(flags)
    change_tasks(ids, flags, lambda task_id: client.release(task_id, array=array))
