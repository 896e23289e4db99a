from __future__ import annotations

import typer

from dgpu.cli.connection import wrong_address
from dgpu.cli.failures import note
from dgpu.cli.flags import flags_of
from dgpu.cli.output import print_document

app = typer.Typer(add_completion=False)


@app.command()
def logout(ctx: typer.Context) -> None:
    """Forget the token that login stored. It stays valid; to end it: dgpu token revoke ID"""
    from dgpu.client.credentials import forget_token
    from dgpu.client.server import server_url

    flags = flags_of(ctx)
    try:
        url = server_url(flags.server)
        found = forget_token(url)
    except ValueError as error:
        raise wrong_address(error) from None
    if not flags.is_table and flags.output != "name":
        print_document({"server": url, "forgotten": found}, flags)
    elif found:
        typer.echo(url if flags.output == "name" else f"Logged out of {url}")
    else:
        note(f"No token is stored for {url}")
