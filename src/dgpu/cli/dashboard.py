from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from dgpu.cli.connection import builtins, connect
from dgpu.cli.failures import note
from dgpu.cli.flags import flags_of
from dgpu.cli.output import print_document

app = typer.Typer(add_completion=False)

PrintUrl = Annotated[bool, typer.Option("--print-url", help="Only print a one-time address for any browser.")]


@app.command()
def dashboard(ctx: typer.Context, print_url: PrintUrl = False) -> None:
    """Open the dashboard. A browser of the scheduler's own user needs no sign-in. Any other browser needs an address
    that works once, within five minutes, and stays signed in for a week.
    """
    flags = flags_of(ctx)
    client = connect(flags)
    if (
        not print_url
        and flags.is_table
        and client.session().access in {"user", "open"}
        and open_browser(f"{client.url}/")
    ):
        typer.echo(f"{client.url}/")
        return
    code = client.session_code()
    url = f"{client.url}{code.url_path}"
    if not flags.is_table and flags.output != "name":
        print_document({**builtins(code), "url": url}, flags)
        return
    typer.echo(url)
    note(f"It works once, within {code.expires_in_seconds // 60} minutes.")


def open_browser(url: str) -> bool:
    """The address must hold no secret: every user can see it in the list of processes."""
    import webbrowser

    if sys.platform != "darwin" and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        return False  # do not open a browser inside this terminal
    try:
        return webbrowser.open(url)
    except webbrowser.Error:
        return False
