from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(add_completion=False)


@app.command()
def witness(
    ctx: typer.Context,
    directory: Annotated[
        Path | None, typer.Option("--dir", metavar="D", help="Of `dgpu ha join --witness`.")
    ] = None,
) -> int:
    """The third member of a highly available cluster, in the foreground. It stores and votes, and schedules nothing."""
    from dgpu.cli.flags import flags_of
    from dgpu.entry.ha.witness import DEFAULT_DIR, run_witness

    flags_of(ctx).is_service = True
    return run_witness((directory or DEFAULT_DIR).expanduser().absolute())
