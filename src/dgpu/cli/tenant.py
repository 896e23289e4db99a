from __future__ import annotations

from typing import Annotated, Any

import typer

from dgpu.cli.arguments import parse_memory_mb, parse_priority
from dgpu.cli.connection import builtins, connect
from dgpu.cli.each import remove_each
from dgpu.cli.failures import note
from dgpu.cli.flags import Flags, flags_of
from dgpu.cli.formats import memory
from dgpu.cli.output import Column, Row, print_document, print_fields, print_rows, repeat

app = typer.Typer(add_completion=False)

_POOLS = ("online", "batch")

Name = Annotated[str, typer.Argument(metavar="TENANT")]
Names = Annotated[list[str], typer.Argument(metavar="TENANT...")]


def _limit(key: str) -> Any:
    return lambda row: "" if row[key] is None else f"{row[key]:g}"


def _used_of(row: Row, key: str, used: float) -> str:
    return f"{used:g}" if row[key] is None else f"{used:g}/{row[key]:g}"


COLUMNS = (
    Column("TENANT", lambda row: str(row["id"]), stretches=True),
    Column("GPUS", lambda row: _used_of(row, "max_gpus", row["use"]["gpus_used"]), right=True),
    Column("GUARANTEED", lambda row: f"{row['guaranteed_gpus'] or ''}", right=True),
    Column("WEIGHT", lambda row: f"{row['weight']:g}", right=True),
    Column("RUNNING", lambda row: _used_of(row, "max_running", row["use"]["running"]), right=True),
    Column("WAITING", lambda row: _used_of(row, "max_waiting", row["use"]["waiting"]), right=True),
    Column(
        "MONTH-GPU-H",
        lambda row: _used_of(row, "gpu_hours_per_month", round(row["use"]["gpu_hours_this_month"], 2)),
        right=True,
    ),
    Column("MAX-PRIORITY", _limit("max_priority"), right=True, wide=True),
    Column("GPU-MEMORY", lambda row: memory(row["max_gpu_memory_mb"]), right=True, wide=True),
    Column("POOLS", lambda row: ",".join(row["pools"]), wide=True),
)


@app.callback(invoke_without_command=True)
def tenant(ctx: typer.Context) -> None:
    """Tenants, their limits and their usage."""
    if ctx.invoked_subcommand is not None:
        return
    flags = flags_of(ctx)
    client = connect(flags)
    repeat(lambda: _print_list(builtins(client.tenants()), flags), flags)


@app.command("list")
def list_tenants(ctx: typer.Context) -> None:
    """All tenants; the same as without a subcommand."""
    flags = flags_of(ctx)
    _print_list(builtins(connect(flags).tenants()), flags)


@app.command()
def show(ctx: typer.Context, name: Name) -> None:
    """Details of a tenant."""
    flags = flags_of(ctx)
    _print_one(builtins(connect(flags).tenant(_checked(name))), flags)


@app.command("set")
def set_tenant(
    ctx: typer.Context,
    name: Name,
    max_gpus: Annotated[int | None, typer.Option("--max-gpus", metavar="N", help="GPUs at once.")] = None,
    guaranteed: Annotated[
        int | None,
        typer.Option("--guaranteed", metavar="N", help="GPUs kept for its waiting tasks."),
    ] = None,
    weight: Annotated[
        float | None, typer.Option("--weight", metavar="W", help="Weight in the fair share.")
    ] = None,
    max_running: Annotated[
        int | None, typer.Option("--max-running", metavar="N", help="Tasks at once.")
    ] = None,
    max_waiting: Annotated[
        int | None, typer.Option("--max-waiting", metavar="N", help="Waiting tasks.")
    ] = None,
    max_memory: Annotated[
        str | None,
        typer.Option("--max-mem", metavar="MB", help="GPU memory of its running tasks: 64000 or 64G."),
    ] = None,
    max_priority: Annotated[
        str | None, typer.Option("--max-priority", metavar="P", help="0 to 100, or a level's name.")
    ] = None,
    pools: Annotated[
        str | None, typer.Option("--pools", metavar="POOLS", help="online, batch or online,batch.")
    ] = None,
    gpu_hours: Annotated[
        float | None, typer.Option("--gpu-hours", metavar="H", help="Budget per calendar month.")
    ] = None,
    no_limit: Annotated[
        list[str] | None,
        typer.Option("--no-limit", metavar="NAME", help="Remove a limit, for example max-gpus. Repeatable."),
    ] = None,
) -> None:
    """Create a tenant, or change some of its limits; the others stay."""
    flags = flags_of(ctx)
    client: Any = connect(flags)
    _checked(name)
    given = {
        "max_gpus": max_gpus,
        "guaranteed_gpus": guaranteed,
        "weight": weight,
        "max_running": max_running,
        "max_waiting": max_waiting,
        "max_gpu_memory_mb": None if max_memory is None else parse_memory_mb(max_memory),
        "max_priority": None if max_priority is None else parse_priority(max_priority),
        "pools": None if pools is None else _pools(pools),
        "gpu_hours_per_month": gpu_hours,
    }
    said = {key: value for key, value in given.items() if value is not None}
    lifted = {_limit_key(limit, said, given) for limit in no_limit or ()}
    limits = {key: value for key, value in _present(client, name).items() if key not in lifted} | said
    _print_one(builtins(client.set_tenant(name, **limits)), flags)


@app.command()
def remove(ctx: typer.Context, names: Names) -> None:
    """Remove tenants that have no tasks."""
    flags = flags_of(ctx)
    client = connect(flags)
    for name in names:
        _checked(name)
    remove_each(names, client.remove_tenant, flags)


def _checked(name: str) -> str:
    """Checks the name: another one would change the path of the request."""
    from dgpu.wire.fields import Unacceptable, tenant

    try:
        return tenant(name)
    except Unacceptable as bad:
        raise typer.BadParameter(
            f"{name!r} is not a tenant's name; expected {bad.expected}", param_hint="TENANT"
        ) from None


def _pools(text: str) -> list[str]:
    names = [each.strip() for each in text.split(",")]
    for name in names:
        if name not in _POOLS:
            raise typer.BadParameter(
                f"{name!r} of {text!r} is not a pool; expected online, batch or online,batch",
                param_hint="--pools",
            )
    return names


_SHORT = {"guaranteed": "guaranteed_gpus", "max_mem": "max_gpu_memory_mb", "gpu_hours": "gpu_hours_per_month"}


def _limit_key(text: str, said: dict[str, Any], known: dict[str, Any]) -> str:
    key = text.strip().replace("-", "_")
    key = _SHORT.get(key, key)
    if key not in known:
        raise typer.BadParameter(
            f"{text!r} is not a limit; expected one of {', '.join(known)}", param_hint="--no-limit"
        )
    if key in said:
        raise typer.BadParameter(f"{text!r} is both set and removed", param_hint="--no-limit")
    return key


def _present(client: Any, name: str) -> dict[str, Any]:
    """The current limits; none for a new tenant."""
    from dgpu.client.errors import NotFound

    try:
        answer = builtins(client.tenant(name))
    except NotFound:
        return {}
    return {key: value for key, value in answer.items() if key not in {"id", "use"} and value is not None}


def _print_list(tenants: list[dict[str, Any]], flags: Flags) -> None:
    print_rows({"tenants": tenants}, tenants, COLUMNS, "id", flags)
    if flags.is_table and not tenants:
        note("There are no tenants: every user may use everything. To create one: dgpu tenant set NAME")


def _print_one(answer: dict[str, Any], flags: Flags) -> None:
    if flags.output == "name":
        typer.echo(answer["id"])
        return
    if not flags.is_table:
        print_document(answer, flags)
        return
    use = answer["use"]
    print_fields(
        [
            ("tenant", answer["id"]),
            ("gpus", _used_of(answer, "max_gpus", use["gpus_used"])),
            ("guaranteed", f"{answer['guaranteed_gpus'] or ''}"),
            ("kept now", f"{use['gpus_kept']:g}" if use["gpus_kept"] else ""),
            ("weight", f"{answer['weight']:g} ({use['share']:.0%} of all)"),
            ("running", _used_of(answer, "max_running", use["running"])),
            ("waiting", _used_of(answer, "max_waiting", use["waiting"])),
            ("gpu memory", _used_of(answer, "max_gpu_memory_mb", use["gpu_memory_mb"])),
            ("max priority", _limit("max_priority")(answer)),
            ("pools", ", ".join(answer["pools"])),
            ("recent gpu-hours", f"{use['recent_gpu_hours']:.2f}"),
            (
                "gpu-hours this month",
                _used_of(answer, "gpu_hours_per_month", round(use["gpu_hours_this_month"], 2)),
            ),
        ]
    )
