from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from dgpu.cli.arguments import parse_duration
from dgpu.cli.failures import CliFailure, ExitCode, note
from dgpu.cli.flags import flags_of
from dgpu.cli.formats import clock, duration
from dgpu.cli.output import Column, print_document, print_rows

app = typer.Typer(add_completion=False, no_args_is_help=True)

MAX_TOKEN_SECONDS = 30 * 86_400
Directory = Annotated[
    Path | None,
    typer.Option("--dir", metavar="D", help="The scheduler's storage.snapshot_dir; without it: of --config."),
]
Config = Annotated[Path | None, typer.Option("--config", "-c", metavar="F", help="scheduler.yaml")]

COLUMNS = (
    Column("NODES", lambda row: ", ".join(row["nodes"]), stretches=True),
    Column("STATUS", lambda row: str(row["status"])),
    Column("JOINED", lambda row: clock(row["joined_at"])),
    Column("EXPIRES", lambda row: clock(row["expires_at"])),
    Column("JOIN", lambda row: str(row["join"]), wide=True),
)


@app.callback()
def ca() -> None:
    """Certificates of machines. The verbs work on the scheduler's directory, on its own machine."""


@app.command()
def init(ctx: typer.Context, directory: Directory = None, config: Config = None) -> None:
    """Make the cluster's certificate authority. An existing one stays as it is."""
    from dgpu.entry.machines import MachineFailure, make_authority

    data_dir = _data_dir(directory, config)
    try:
        fingerprint, is_new = make_authority(data_dir)
    except MachineFailure as error:
        raise CliFailure(str(error)) from None
    _print({"fingerprint": fingerprint, "created": is_new}, fingerprint, ctx)
    if is_new:
        note(f"The certificate authority is in {data_dir / 'ca'}. Keep a backup; its key is a secret.")
        note(
            "The scheduler uses it from its next start, with server.grpc_tls: true (agents) or server.http_tls: ca "
            "(REST and dashboard) in scheduler.yaml."
        )
    else:
        note(f"{data_dir / 'ca'} has a certificate authority already; nothing was changed.")


@app.command()
def certificate(ctx: typer.Context, directory: Directory = None, config: Config = None) -> None:
    """Print the certificate of the authority, without its key: for SSL_CERT_FILE of HTTPS clients."""
    from dgpu.entry.machines import MachineFailure, authority_pem

    try:
        pem = authority_pem(_data_dir(directory, config))
    except MachineFailure as error:
        raise CliFailure(str(error)) from None
    _print({"certificate": pem}, pem.rstrip(), ctx)


@app.command()
def token(
    ctx: typer.Context,
    nodes: Annotated[list[str], typer.Option("--node", "-n", metavar="NODE", help="May be repeated.")],
    expires: Annotated[
        str, typer.Option("--expires", metavar="TIME", help="For example 30m, 1h or 1d.")
    ] = "1h",
    directory: Directory = None,
    config: Config = None,
) -> None:
    """Print a token with which one machine joins as these nodes, once."""
    from dgpu.entry.machines import MachineFailure, invite

    seconds = max(1, int(parse_duration(expires)))
    if seconds > MAX_TOKEN_SECONDS:
        raise typer.BadParameter("at most 30d", param_hint="--expires")
    try:
        made = str(invite(_data_dir(directory, config), tuple(nodes), seconds))
    except MachineFailure as error:
        raise CliFailure(str(error)) from None
    _print({"token": made, "nodes": nodes, "expires_in_seconds": seconds}, made, ctx)
    note(
        f"Valid for {duration(seconds)}, once. On the machine: dgpu agent join --server HOST:PORT --token TOKEN"
    )


@app.command("list")
def list_machines(ctx: typer.Context, directory: Directory = None, config: Config = None) -> None:
    """Machines that were invited, have joined or were revoked."""
    import msgspec

    from dgpu.entry.machines import MachineFailure, list_joins

    try:
        rows: list[dict[str, Any]] = msgspec.to_builtins(list_joins(_data_dir(directory, config)))
    except MachineFailure as error:
        raise CliFailure(str(error)) from None
    flags = flags_of(ctx)
    print_rows({"machines": rows}, rows, COLUMNS, "join", flags)
    if flags.is_table and not rows:
        note("No machine was invited. To invite one: dgpu ca token --node NAME")


@app.command()
def revoke(
    ctx: typer.Context,
    node: Annotated[str, typer.Argument(metavar="NODE")],
    directory: Directory = None,
    config: Config = None,
) -> None:
    """Refuse the certificates and unused tokens of a node, now and later. Its open streams end within seconds."""
    import msgspec

    from dgpu.entry.machines import MachineFailure
    from dgpu.entry.machines import revoke as revoke_node

    try:
        rows: list[dict[str, Any]] = msgspec.to_builtins(revoke_node(_data_dir(directory, config), node))
    except MachineFailure as error:
        raise CliFailure(str(error)) from None
    if not rows:
        raise CliFailure(f"No valid certificate or token names node {node}.", ExitCode.NOT_FOUND)
    flags = flags_of(ctx)
    if not flags.is_table:
        print_rows({"machines": rows}, rows, COLUMNS, "join", flags)
    others = sorted({name for row in rows for name in row["nodes"]} - {node})
    note(
        f"{node} is revoked."
        + (f" So are the nodes of the same machine: {', '.join(others)}." if others else "")
    )


def _data_dir(directory: Path | None, config: Path | None) -> Path:
    if directory is not None:
        return directory.expanduser().absolute()
    from dgpu.entry.config import ConfigError, load_scheduler_config
    from dgpu.entry.scheduler import data_dir

    try:
        return data_dir(load_scheduler_config(config))
    except ConfigError as error:
        raise CliFailure(str(error), ExitCode.USAGE) from None


def _print(document: dict[str, Any], line: str, ctx: typer.Context) -> None:
    flags = flags_of(ctx)
    if flags.is_table or flags.output == "name":
        typer.echo(line)
    else:
        print_document(document, flags)
