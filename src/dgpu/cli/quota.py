from __future__ import annotations

from typing import Annotated, Any

import typer

from dgpu.cli.connection import builtins, connect
from dgpu.cli.failures import CliFailure, ExitCode, note
from dgpu.cli.flags import Flags, flags_of
from dgpu.cli.formats import listed, plural
from dgpu.cli.output import Column, Row, print_document, print_rows, repeat

app = typer.Typer(add_completion=False)


def _number(key: str) -> Any:
    return lambda row: f"{row[key]:g}"


POOLS = (
    Column("POOL", lambda row: str(row["pool"])),
    Column("QUOTA", _number("quota"), right=True),
    Column("USED", _number("used"), right=True),
    Column("AVAILABLE", _number("available"), right=True),
    Column("BORROWED", lambda row: f"{row['borrowed']:g}" if row["borrowed"] else "", right=True),
    Column("WAITING", lambda row: str(row["waiting"]), right=True),
)
TENANTS = (
    Column("TENANT", lambda row: str(row["tenant_id"]), stretches=True),
    Column("GPUS", _number("gpus_used"), right=True),
    Column("RUNNING", lambda row: str(row["running"]), right=True),
    Column("WAITING", lambda row: str(row["waiting"]), right=True),
    Column("SHARE", lambda row: f"{row['share']:.0%}" if row["share"] else "", right=True),
    Column("RECENT-GPU-H", lambda row: f"{row['recent_gpu_hours']:.2f}", right=True),
    Column("MONTH-GPU-H", lambda row: f"{row['gpu_hours_this_month']:.2f}", right=True, wide=True),
    Column("KEPT", lambda row: f"{row['gpus_kept']:g}" if row["gpus_kept"] else "", right=True, wide=True),
)


@app.callback(invoke_without_command=True)
def quota(ctx: typer.Context) -> None:
    """Usage and quota of pools and tenants. The subcommand set changes the quota."""
    if ctx.invoked_subcommand is not None:
        return
    flags = flags_of(ctx)
    client = connect(flags)
    repeat(lambda: show(builtins(client.quota()), flags), flags)


@app.command("set")
def set_quota(
    ctx: typer.Context,
    online: Annotated[
        float | None,
        typer.Option(
            "--online", metavar="PART", help="Part of the GPUs for online, 0 to 1; batch gets the rest."
        ),
    ] = None,
    mode: Annotated[str | None, typer.Option("--mode", metavar="MODE", help="strict or borrow.")] = None,
    reclaim: Annotated[str | None, typer.Option("--reclaim", metavar="HOW", help="wait or stop.")] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Only show the tasks that would start, wait, drain or be stopped."),
    ] = False,
) -> None:
    """Change the quota of the running scheduler."""
    flags = flags_of(ctx)
    change = {"online_percent": online, "mode": mode, "reclaim": reclaim}
    if not any(value is not None for value in change.values()):
        raise typer.BadParameter("give --online, --mode or --reclaim")
    client: Any = connect(flags)
    if dry_run:
        _tell_effect(builtins(client.try_quota(**change)), flags)
        return
    show(builtins(client.set_quota(**change)), flags)


def show(answer: dict[str, Any], flags: Flags) -> None:
    pools: list[Row] = [{"pool": pool, **answer[pool]} for pool in ("online", "batch")]
    print_rows(answer, pools, POOLS, "pool", flags)
    if not flags.is_table:
        return
    if answer["tenants"]:
        typer.echo()
        print_rows(answer, answer["tenants"], TENANTS, "tenant_id", flags)
    rules = f"{answer['online_percent']:g} online, {answer['mode']}"
    if answer["mode"] == "borrow":
        rules += f", reclaim: {answer['reclaim']}"
    note(f"{plural(answer['total_gpus'], 'schedulable GPU')}; {rules}")


def _tell_effect(effect: dict[str, Any], flags: Flags) -> None:
    if not flags.is_table:
        print_document(effect, flags)
    else:
        pools: list[Row] = [{"pool": pool, **effect[pool]} for pool in ("online", "batch")]
        print_rows(effect, pools, POOLS[:4], "pool", flags)
        for key, words in (
            ("starts", "would start"),
            ("waits", "would wait for quota"),
            ("drains", "beyond the new quota"),
            ("stops", "would be stopped"),
        ):
            if effect[key]:
                typer.echo(f"{plural(len(effect[key]), 'task')} {words}: {listed(effect[key])}")
        if not effect["rejected"] and not any(effect[key] for key in ("starts", "waits", "drains", "stops")):
            typer.echo("No task would be affected.")
        note("Nothing was changed.")
    if effect["rejected"]:
        raise CliFailure(f"It would be refused: {effect['rejected']['detail']}", ExitCode.REFUSED)
