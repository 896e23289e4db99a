from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dgpu.cli.connection import builtins, connect
from dgpu.cli.each import remove_each
from dgpu.cli.failures import CliFailure, ExitCode, note
from dgpu.cli.flags import Flags, flags_of
from dgpu.cli.formats import clock
from dgpu.cli.output import Column, print_document, print_rows, repeat

if TYPE_CHECKING:
    from dgpu.client.sync import Client

app = typer.Typer(add_completion=False)

MAX_BYTES = 64 << 10
Tenant = Annotated[
    str | None,
    typer.Option("--tenant", "-A", metavar="TENANT", help="Your first tenant, if absent; else default."),
]

COLUMNS = (
    Column("NAME", lambda row: str(row["name"]), stretches=True),
    Column("TENANT", lambda row: str(row["tenant_id"]), stretches=True),
    Column("VERSION", lambda row: str(row["version"])),
    Column("SET-BY", lambda row: str(row["set_by"]), stretches=True),
    Column("SET", lambda row: clock(row["set_at"])),
)


@app.callback(invoke_without_command=True)
def secret(ctx: typer.Context) -> None:
    """Secrets of a tenant: list, set, delete, rotate. No command shows a value."""
    if ctx.invoked_subcommand is not None:
        return
    flags = flags_of(ctx)
    client = connect(flags)
    repeat(lambda: _print_list(client, None, flags), flags)


@app.command("list")
def list_secrets(ctx: typer.Context, tenant: Tenant = None) -> None:
    """Names, versions, and who set them; of all your tenants, if none is given."""
    flags = flags_of(ctx)
    _print_list(connect(flags), tenant, flags)


@app.command("set")
def set_secret(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="For example HF_TOKEN.")],
    tenant: Tenant = None,
    from_file: Annotated[
        Path | None, typer.Option("--from-file", metavar="FILE", help="Its exact bytes are the value.")
    ] = None,
) -> None:
    """Set a secret. Its value is read from the terminal without echo, from stdin, or from a file."""
    flags = flags_of(ctx)
    value = _read_value(name, from_file)
    client = connect(flags)
    done = builtins(client.set_secret(name, value, tenant_id=_tenant(client, tenant)))
    if flags.output == "name":
        typer.echo(done["name"])
    elif not flags.is_table:
        print_document(done, flags)
    else:
        typer.echo(f"Secret {done['name']} of tenant {done['tenant_id']} is set: version {done['version']}")
        note(f"To use it: dgpu submit -A {done['tenant_id']} --secret {done['name']} -- CMD")


@app.command()
def delete(
    ctx: typer.Context, names: Annotated[list[str], typer.Argument(metavar="NAME...")], tenant: Tenant = None
) -> None:
    """Delete secrets. Tasks that use them fail at their next start."""
    flags = flags_of(ctx)
    client = connect(flags)
    owner = _tenant(client, tenant)
    remove_each(names, lambda name: client.delete_secret(name, tenant_id=owner), flags)


@app.command()
def rotate(ctx: typer.Context) -> None:
    """Encrypt all secrets and the variables of all tasks under a new key of the scheduler."""
    flags = flags_of(ctx)
    done = builtins(connect(flags).rotate_secrets())
    if not flags.is_table:
        print_document(done, flags)
        return
    typer.echo(f"Encrypted under a new key: {done['secrets']} secrets, variables of {done['tasks']} tasks")
    note("Copy the new secrets.key into your backups, and to every other scheduler of the cluster.")
    note("The key before it stays until the next rotation.")
    if done["unreadable"]:
        note(f"{done['unreadable']} values cannot be read: their key is missing. Set these secrets again.")


def _tenant(client: Client, given: str | None) -> str:
    if given is not None:
        return given
    tenants: list[str] = builtins(client.whoami())["tenants"]
    return tenants[0] if tenants and tenants != ["*"] else "default"


def _read_value(name: str, path: Path | None) -> str | bytes:
    if path is not None:
        try:
            with path.open("rb") as file:
                value = file.read(MAX_BYTES + 1)
        except OSError as error:
            raise CliFailure(f"Cannot read {path}: {error.strerror}", ExitCode.USAGE) from error
    elif sys.stdin.isatty():
        import getpass

        value = getpass.getpass(f"Value of {name}: ").encode()
    else:
        value = sys.stdin.buffer.read(MAX_BYTES + 2).removesuffix(b"\n")  # `echo` adds the line end
    if not value:
        raise CliFailure("No value was given. Send it to stdin, or type it at the prompt.", ExitCode.USAGE)
    if len(value) > MAX_BYTES:
        raise CliFailure(f"The value has more than {MAX_BYTES:,} bytes.", ExitCode.USAGE)
    return value


def _print_list(client: Client, tenant: str | None, flags: Flags) -> None:
    found: list[dict[str, Any]] = builtins(client.secrets())
    shown = [each for each in found if tenant in {None, each["tenant_id"]}]
    print_rows({"secrets": shown}, shown, COLUMNS, "name", flags)
    if flags.is_table and not shown:
        note("There are no secrets. To set one: dgpu secret set NAME")
