from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(add_completion=False)

SHELLS = ("bash", "zsh", "fish")


@app.command()
def completion(shell: Annotated[str, typer.Argument(metavar="bash|zsh|fish")]) -> None:
    """Print the completion script of a shell. `dgpu --install-completion` installs it."""
    from typer._completion_shared import get_completion_script

    if shell not in SHELLS:
        raise typer.BadParameter(f"{shell!r} is not one of {', '.join(SHELLS)}")
    typer.echo(get_completion_script(prog_name="dgpu", complete_var="_DGPU_COMPLETE", shell=shell))
