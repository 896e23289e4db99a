from __future__ import annotations

import typer

from dgpu import __version__
from dgpu.cli.flags import flags_of

app = typer.Typer(add_completion=False)


@app.command()
def version(ctx: typer.Context) -> None:
    """Print the version of this program."""
    flags = flags_of(ctx)
    if flags.output in {"json", "yaml"}:
        from dgpu.cli.output import print_document

        print_document({"version": __version__}, flags)
    else:
        typer.echo(f"dgpu {__version__}" if flags.is_table else __version__)
