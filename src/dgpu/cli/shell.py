from __future__ import annotations

import os

import typer

from dgpu.cli import submission as s
from dgpu.cli.run import run_at_terminal

app = typer.Typer(add_completion=False)


@app.command(context_settings=s.CONTEXT)
def shell(
    ctx: typer.Context,
    command: s.Command = None,
) -> int:
    """Queue your shell with a terminal on a GPU; the same as run -it -- $SHELL. Ctrl-P Ctrl-Q detaches."""
    if command:
        raise typer.BadParameter(f"unexpected {command[0]!r}; for a command: dgpu run -it -- CMD")
    program = os.environ.get("SHELL") or "/bin/sh"
    return run_at_terminal(ctx, [program], without_terminal="To run a command: dgpu run -- CMD")
