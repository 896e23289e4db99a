from __future__ import annotations

from typing import Annotated, Any

import typer

from dgpu.cli.connection import builtins, connect
from dgpu.cli.each import remove_each
from dgpu.cli.failures import note
from dgpu.cli.flags import Flags, flags_of
from dgpu.cli.formats import clock
from dgpu.cli.output import Column, print_document, print_rows, print_table, repeat
from dgpu.cli.serve import parse_replicas
from dgpu.client.language import step_text

app = typer.Typer(add_completion=False)

Name = Annotated[str, typer.Argument(metavar="NAME")]
Tenant = Annotated[
    str | None, typer.Option("--tenant", "-A", metavar="TENANT", help="Your first tenant, if absent.")
]

COLUMNS = (
    Column("NAME", lambda row: str(row["name"]), stretches=True),
    Column("TENANT", lambda row: str(row["tenant_id"]), stretches=True),
    Column("STATUS", lambda row: str(row["status"])),
    Column("READY", lambda row: f"{row['ready']}/{row['wanted']}"),
    Column("GEN", lambda row: str(row["generation"])),
    Column("REQUESTS", lambda row: str(row["requests"])),
    Column("URL", lambda row: str(row["url"] or ""), stretches=True),
)
REPLICAS = (
    Column("TASK", lambda row: str(row["task_id"])),
    Column("STATUS", lambda row: str(row["status"])),
    Column("GEN", lambda row: str(row["generation"])),
    Column("NODE", lambda row: str(row["node"] or ""), stretches=True),
    Column("REQUESTS", lambda row: str(row["requests"])),
    Column("SINCE", lambda row: clock(row["since"])),
)


@app.callback(invoke_without_command=True)
def services(ctx: typer.Context) -> None:
    """Services: show, scale, restart, rollback, link, delete. To create or update one: dgpu serve."""
    if ctx.invoked_subcommand is not None:
        return
    flags = flags_of(ctx)
    client = connect(flags)

    def show() -> None:
        found = builtins(client.services())
        print_rows({"services": found}, found, COLUMNS, "name", flags)
        if flags.is_table and not found:
            note("There are no services. To run one: dgpu serve --help")

    repeat(show, flags)


@app.command()
def show(ctx: typer.Context, name: Name, tenant: Tenant = None) -> None:
    """The address, the replicas, and the last steps with their causes."""
    flags = flags_of(ctx)
    _print(builtins(connect(flags).service(name, tenant_id=tenant)), flags)


@app.command()
def scale(
    ctx: typer.Context,
    name: Name,
    replicas: Annotated[str, typer.Argument(metavar="N[-M]", help="2, or 1-4.")],
    tenant: Tenant = None,
) -> None:
    """Change the number of replicas. No replica is restarted."""
    flags = flags_of(ctx)
    low, high = parse_replicas(replicas)
    made = connect(flags).scale_service(name, min_replicas=low, max_replicas=high, tenant_id=tenant)
    _print(builtins(made), flags)


@app.command()
def rollback(ctx: typer.Context, name: Name, tenant: Tenant = None) -> None:
    """Return to the generation before."""
    flags = flags_of(ctx)
    _print(builtins(connect(flags).roll_back_service(name, tenant_id=tenant)), flags)


@app.command()
def restart(ctx: typer.Context, name: Name, tenant: Tenant = None) -> None:
    """Replace the replicas one by one by new ones of the same task."""
    flags = flags_of(ctx)
    _print(builtins(connect(flags).restart_service(name, tenant_id=tenant)), flags)


@app.command()
def link(ctx: typer.Context, name: Name, tenant: Tenant = None) -> None:
    """A link that opens the service in a browser. It works once."""
    flags = flags_of(ctx)
    made = connect(flags).service_link(name, tenant_id=tenant)
    if flags.is_table or flags.output == "name":
        typer.echo(made.url)
    else:
        print_document(builtins(made), flags)


@app.command()
def delete(
    ctx: typer.Context,
    names: Annotated[list[str], typer.Argument(metavar="NAME...")],
    tenant: Tenant = None,
) -> None:
    """Delete services. Their replicas are cancelled."""
    flags = flags_of(ctx)
    client = connect(flags)
    remove_each(names, lambda name: client.delete_service(name, tenant_id=tenant), flags)


def _print(service: dict[str, Any], flags: Flags) -> None:
    if flags.output == "name":
        typer.echo(service["name"])
        return
    if not flags.is_table:
        print_document(service, flags)
        return
    low, high = service["min_replicas"], service["max_replicas"]
    between = f"{low}" if low == high else f"{low} to {high}"
    typer.echo(
        f"{service['name']} of {service['tenant_id']}: {service['status']}, generation {service['generation']}"
    )
    typer.echo(f"address   {service['url'] or 'none (server.proxy_address is off)'}")
    typer.echo(f"replicas  {service['ready']} ready, {service['wanted']} wanted ({between})")
    print_table(service["replicas"], REPLICAS)
    for each in service["notes"]:
        typer.echo(f"{clock(each['at'])}  {step_text(each['text'])}")
