from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from dgpu.cli.connection import wrong_address
from dgpu.cli.flags import Flags, flags_of

if TYPE_CHECKING:
    from dgpu.cli.live.feed import Picture
    from dgpu.client.asynchronous import AsyncClient

app = typer.Typer(add_completion=False)

_PATIENCE_SECONDS = 10.0


@app.command()
def top(
    ctx: typer.Context,
    once: Annotated[bool, typer.Option("--once", help="Print the view once and exit; for pipes.")] = False,
    form: Annotated[
        str | None,
        typer.Option("--format", metavar="table|json|yaml", help="The same as -o."),
    ] = None,
) -> None:
    """Nodes, GPUs and tasks, live. Keys: 1 2 3 panes, / filter, s sort, k cancel, d drain, r resume, ? help, q quit."""
    import asyncio

    flags = flags_of(ctx)
    if form is not None and form not in {"table", "json", "yaml"}:
        raise typer.BadParameter(f"{form!r} is not one of table, json, yaml", param_hint="--format")
    flags.output = form or flags.output
    if flags.output == "name":
        raise typer.BadParameter(
            "'name' is not supported here; expected table, json or yaml", param_hint="-o"
        )
    # textual reads stdin and draws on stderr; a piped stdout means that the user wants --once
    is_terminal = all(file.isatty() for file in (sys.stdin, sys.stdout, sys.stderr))
    if not once and flags.is_table and not is_terminal:
        raise typer.BadParameter("the live view needs a terminal; for a pipe: dgpu top --once")
    asyncio.run(_look(flags, once=once or not flags.is_table))


async def _look(flags: Flags, *, once: bool) -> None:
    from dgpu.cli.live.feed import Feed, take_picture

    client = _connect(flags)
    feed = Feed(client, lambda: _elsewhere(flags, feed.client.url))
    try:
        # An unreachable scheduler is reported as for every verb, before the screen changes.
        picture = await take_picture(feed.client)
        if once:
            _print(picture, flags)
        else:
            from dgpu.cli.live.screen import Top

            _end_with_the_terminal()
            await Top(feed, picture).run_async()
    finally:
        await feed.client.close()


def _end_with_the_terminal() -> None:
    """Ends the view when the terminal is closed.

    Without a controlling terminal there is no SIGHUP, and the view would run for ever.
    """
    import select
    import threading

    gone = select.poll()
    gone.register(sys.stdin.fileno(), 0)  # only the hang-up event

    def wait() -> None:
        gone.poll()
        os._exit(128 + signal.SIGHUP)

    threading.Thread(target=wait, name="terminal", daemon=True).start()


def _print(picture: Picture, flags: Flags) -> None:
    from dgpu.cli.live.once import document, print_once
    from dgpu.cli.output import print_document

    if flags.is_table:
        print_once(picture)
    else:
        print_document(document(picture), flags)


def _elsewhere(flags: Flags, url: str) -> AsyncClient | None:
    """Finds a restarted scheduler by the record of `up`. Without a record nothing is tried: the default address may
    belong to another scheduler.
    """
    from dgpu.client.server import recorded_url

    if flags.server or os.environ.get("DGPU_SERVER") or recorded_url() in {None, url}:
        return None
    return _connect(flags)


def _connect(flags: Flags) -> AsyncClient:
    from dgpu.client.asynchronous import AsyncClient

    try:
        return AsyncClient(flags.server, token=flags.token, retries=0, timeout_seconds=_PATIENCE_SECONDS)
    except ValueError as error:
        raise wrong_address(error) from None
