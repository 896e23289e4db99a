from __future__ import annotations

from typing import Annotated

import typer

from dgpu.cli.arguments import parse_ids
from dgpu.cli.connection import builtins, connect
from dgpu.cli.flags import flags_of
from dgpu.cli.output import print_document

app = typer.Typer(add_completion=False)


@app.command()
def link(
    ctx: typer.Context,
    task_id: Annotated[str, typer.Argument(metavar="ID", help="42 or task-42.")],
    port: Annotated[
        int | None, typer.Argument(metavar="[PORT]", help="Without it: the first --port of the task.")
    ] = None,
    path: Annotated[str | None, typer.Option("--path", metavar="PATH", help="The page to open. [/]")] = None,
    rank: Annotated[
        int | None, typer.Option("--rank", metavar="N", help="Of a task over several nodes. [0]")
    ] = None,
) -> None:
    """Print a link that opens a port of a running task in a browser.

    The link works once, within 5 minutes. Then this browser can open the host of the task for a day. The host is apart
    from the dashboard: a page of a task cannot use your session there.
    """
    flags = flags_of(ctx)
    (name,) = parse_ids([task_id])
    made = connect(flags).link(name, port, path=path, rank=rank)
    if flags.is_table or flags.output == "name":
        typer.echo(made.url)
    else:
        print_document(builtins(made), flags)
