from __future__ import annotations

from typing import Any

import typer

from dgpu.cli.connection import builtins, connect
from dgpu.cli.failures import note
from dgpu.cli.flags import flags_of
from dgpu.cli.output import print_document, print_fields
from dgpu.wire import isolation

app = typer.Typer(add_completion=False)

_SOURCES = {
    "uid": "Unix user on this machine",
    "token": "token",
    "oidc": "identity provider",
    "session": "browser session",
    "open": "nobody is asked: auth.mode is none",
}


@app.command()
def whoami(ctx: typer.Context) -> None:
    """Show your user, role and tenants."""
    flags = flags_of(ctx)
    told = builtins(connect(flags).whoami())
    if flags.output == "name":
        typer.echo(told["user"])
    elif not flags.is_table:
        print_document(told, flags)
    else:
        print_fields(
            [
                ("user", told["user"]),
                ("role", told["role"]),
                ("tenants", tenants_text(told["tenants"])),
                ("known by", _SOURCES.get(told["source"], told["source"])),
                ("token", told["token_id"] or ""),
                ("scopes", ", ".join(told["scopes"]) or "all of the role"),
            ]
        )
        if notice := isolation.NOTICES.get(told["isolation"]):
            note(notice)


def tenants_text(tenants: list[Any]) -> str:
    return "all" if tenants == ["*"] else ", ".join(tenants)
