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
    from dgpu.client.credentials import forget_tokens
    from dgpu.client.server import server_urls

    flags = flags_of(ctx)
    try:
        urls = server_urls(flags.server)
        found = forget_tokens(urls)
    except ValueError as error:
        raise wrong_address(error) from None
    if not flags.is_table and flags.output != "name":
        print_document({"server": ",".join(urls), "forgotten": bool(found)}, flags)
    elif found:
        typer.echo("\n".join(found) if flags.output == "name" else f"Logged out of {', '.join(found)}")
    else:
        note(f"No token is stored for {', '.join(urls)}")
