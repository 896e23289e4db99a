from __future__ import annotations

from typing import Annotated

import typer

from dgpu.cli.arguments import parse_priority
from dgpu.cli.changing import Array, change_tasks
from dgpu.cli.connection import connect
from dgpu.cli.flags import flags_of

app = typer.Typer(add_completion=False)


@app.command()
def priority(
    ctx: typer.Context,
    task: Annotated[str, typer.Argument(metavar="ID", help="42 or task-42; in an array 42_3.")],
    value: Annotated[
        str, typer.Argument(metavar="PRIORITY", help="low, normal, high, critical or 0 to 100.")
    ],
    array: Array = False,
) -> None:
    """Change the priority of a waiting task. Its pool does not change."""
    flags = flags_of(ctx)
    wanted = parse_priority(value)
    client = connect(flags)
    change_tasks([task], flags, lambda task_id: client.set_priority(task_id, wanted, array=array))
