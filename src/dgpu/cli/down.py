from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(add_completion=False)


@app.command()
def down(
    stop_tasks: Annotated[
        bool, typer.Option("--stop-tasks", help="Cancel the running tasks permanently; waiting tasks stay.")
    ] = False,
    data_dir: Annotated[
        Path | None, typer.Option("--data-dir", metavar="D", help="The directory of `dgpu up`.")
    ] = None,
) -> int:
    """Stop the processes of `dgpu up`. By default, running tasks continue and waiting tasks are kept."""
    from dgpu.entry.up import down

    return down(data_dir, stop_tasks=stop_tasks)
