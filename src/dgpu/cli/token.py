from __future__ import annotations

from typing import Annotated, Any

import typer

from dgpu.cli.arguments import parse_duration
from dgpu.cli.connection import builtins, connect
from dgpu.cli.each import remove_each
from dgpu.cli.failures import note
from dgpu.cli.flags import Flags, flags_of
from dgpu.cli.formats import clock
from dgpu.cli.output import Column, Row, print_document, print_rows, repeat
from dgpu.cli.whoami import tenants_text

app = typer.Typer(add_completion=False)

ROLES = ("admin", "operator", "tenant-admin", "user", "viewer")
Ids = Annotated[list[str], typer.Argument(metavar="ID...")]


def _state(row: Row) -> str:
    return "revoked" if row["revoked"] else "valid"


COLUMNS = (
    Column("ID", lambda row: str(row["id"])),
    Column("NAME", lambda row: str(row["name"]), stretches=True),
    Column("USER", lambda row: str(row["user"]), stretches=True),
    Column("ROLE", lambda row: str(row["role"])),
    Column("TENANTS", lambda row: tenants_text(row["tenants"]), stretches=True),
    Column("STATE", _state),
    Column("EXPIRES", lambda row: clock(row["expires_at"]) if row["expires_at"] else "never"),
    Column("LAST-USE", lambda row: clock(row["last_used_at"]) if row["last_used_at"] else ""),
    Column("SCOPES", lambda row: ", ".join(row["scopes"]) or "all", wide=True, stretches=True),
    Column("CREATED-BY", lambda row: str(row["created_by"]), wide=True),
    Column("CREATED", lambda row: clock(row["created_at"]), wide=True),
)


@app.callback(invoke_without_command=True)
def token(ctx: typer.Context) -> None:
    """API tokens: list, create, revoke."""
    if ctx.invoked_subcommand is not None:
        return
    flags = flags_of(ctx)
    client = connect(flags)
    repeat(lambda: _print_list(builtins(client.tokens()), flags), flags)


@app.command("list")
def list_tokens(ctx: typer.Context) -> None:
    """All tokens that you may manage; the same as without a subcommand."""
    flags = flags_of(ctx)
    _print_list(builtins(connect(flags).tokens()), flags)


@app.command()
def create(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="What it is for.")],
    user: Annotated[
        str | None, typer.Option("--user", "-u", metavar="USER", help="Who acts with it. You, if absent.")
    ] = None,
    role: Annotated[
        str | None, typer.Option("--role", "-r", metavar="|".join(ROLES), help="user, if absent.")
    ] = None,
    tenants: Annotated[
        list[str] | None,
        typer.Option("--tenant", "-A", metavar="TENANT", help="Repeatable. '*': all, for a viewer."),
    ] = None,
    expires: Annotated[
        str | None,
        typer.Option("--expires", metavar="DURATION", help="30d, 12h or never. 90d, if absent."),
    ] = None,
    scopes: Annotated[
        list[str] | None,
        typer.Option(
            "--scope",
            metavar="ACTION",
            help="Repeatable: the only actions that it may do, such as task.submit. All of its role, if absent.",
        ),
    ] = None,
) -> None:
    """Create a token. It is printed once and stored nowhere."""
    flags = flags_of(ctx)
    if role is not None and role not in ROLES:
        raise typer.BadParameter(f"{role!r} is not one of {', '.join(ROLES)}", param_hint="--role")
    made = connect(flags).create_token(
        name, user=user, role=role, tenants=tenants, expires_in_seconds=_seconds(expires), scopes=scopes
    )
    _print_new(builtins(made), flags)


@app.command()
def revoke(ctx: typer.Context, ids: Ids) -> None:
    """Revoke tokens. They are refused from the next request on."""
    flags = flags_of(ctx)
    remove_each(ids, connect(flags).revoke_token, flags)


def _seconds(text: str | None) -> int | None:
    if text is None:
        return None
    return 0 if text == "never" else max(1, round(parse_duration(text)))


def _print_list(tokens: list[dict[str, Any]], flags: Flags) -> None:
    print_rows({"tokens": tokens}, tokens, COLUMNS, "id", flags)
    if flags.is_table and not tokens:
        note("There are no tokens. To create one: dgpu token create NAME --user USER --tenant TENANT")


def _print_new(made: dict[str, Any], flags: Flags) -> None:
    if flags.output == "name":
        typer.echo(made["id"])
    elif not flags.is_table:
        print_document(made, flags)
    else:
        typer.echo(made["token"])
        until = f"until {clock(made['expires_at'])}" if made["expires_at"] else "for ever"
        whose = tenants_text(made["tenants"])
        only = f", only {', '.join(made['scopes'])}" if made["scopes"] else ""
        note(f"Token {made['id']}: {made['user']}, {made['role']}, tenants: {whose}{only}, valid {until}.")
        note(f"It is shown only now. Its user runs: dgpu login. To end it: dgpu token revoke {made['id']}")
