from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(add_completion=False)


@app.command()
def down(
    stop_tasks: Annotated[
        bool, typer.Option("--stop-tasks", help="Cancel the running tasks for good; waiting ones stay.")
    ] = False,
    data_dir: Annotated[
        Path | None, typer.Option("--data-dir", metavar="D", help="The directory that was given to up.")
    ] = None,
) -> int:
    """End what `dgpu up` started. Running tasks go on, and waiting ones are kept, unless told otherwise."""
    from dgpu.entry.up import down

    return down(data_dir, stop_tasks=stop_tasks)
