from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from dgpu.cli.connection import builtins, connect
from dgpu.cli.each import for_each
from dgpu.cli.failures import CliFailure, ExitCode, note
from dgpu.cli.flags import flags_of
from dgpu.cli.formats import duration, memory, since
from dgpu.cli.output import Column, Row, print_rows, repeat

if TYPE_CHECKING:
    from dgpu.client.sync import Client

app = typer.Typer(add_completion=False)


def _number(key: str, unit: str) -> Any:
    return lambda row: "" if row[key] is None else f"{row[key]}{unit}"


def _memory(row: Row) -> str:
    used = memory(row["memory_used_mb"]) or "?"
    return f"{used}/{memory(row['memory_total_mb'])}"


def _remark(row: Row) -> str:
    health = row["health"]
    if health["state"] == "trusted":
        return str(row["fault"])
    why = f"{health['state']} for {duration(since(health['since']))}: {health['evidence']}"
    if health["state"] == "out":
        return (
            f"{why} ({health['remark']}); needs repair, then: dgpu gpus recover {row['node']}:{row['index']}"
        )
    if health["state"] == "parole":
        return (
            f"{why} ({health['remark']}); takes tasks below normal priority, {health['good_runs']} succeeded"
        )
    return f"{why} ({health['remark']})" if health["state"] == "probing" else why


COLUMNS = (
    Column("NODE", lambda row: str(row["node"]), stretches=True),
    Column("GPU", lambda row: str(row["index"]), right=True),
    Column("MODEL", lambda row: str(row["model"]), stretches=True),
    Column("STATUS", lambda row: str(row["status"])),
    Column("UTIL", _number("utilization_percent", "%"), right=True),
    Column("MEMORY", _memory, right=True),
    Column("RESERVED", lambda row: memory(row["memory_reserved_mb"] or None), right=True, wide=True),
    Column("FOREIGN", lambda row: memory(row["memory_foreign_mb"] or None), right=True, wide=True),
    Column("TEMP", _number("temperature_c", "°C"), right=True),
    Column("POWER", _number("power_w", "W"), right=True, wide=True),
    Column("TASKS", lambda row: ",".join(row["tasks"])),
    Column("LOADED", lambda row: ",".join(row["loaded_models"]), wide=True),
    Column("UUID", lambda row: str(row["uuid"]), wide=True),
    Column("HEALTH", lambda row: str(row["health"]["state"]), wide=True),
    Column("REMARK", _remark, stretches=True),
)


@app.callback(invoke_without_command=True)
def gpus(
    ctx: typer.Context,
    node: Annotated[str | None, typer.Option("--node", metavar="NODE", help="Only this node.")] = None,
    status: Annotated[str | None, typer.Option("--status", "-s", metavar="STATE", help="Only these.")] = None,
) -> None:
    """GPUs, their load and their tasks. The subcommand recover returns a GPU to service."""
    if ctx.invoked_subcommand is not None:
        return
    flags = flags_of(ctx)
    client = connect(flags)

    def draw() -> None:
        answer = builtins(client.gpus())
        chosen = [
            gpu for gpu in answer["gpus"] if node in {None, gpu["node"]} and status in {None, gpu["status"]}
        ]
        if node is not None and not chosen:
            _check_node(client, node)
        answer["gpus"] = chosen
        print_rows(answer, chosen, COLUMNS, "id", flags)
        if flags.is_table:
            note(
                _summary(answer)
                if answer["total"]
                else "No GPU has been registered. Is an agent running? dgpu nodes"
            )

    repeat(draw, flags)


def _check_node(client: Client, node: str) -> None:
    """A node without GPUs is valid; an unknown node is an error."""
    if all(known.id != node for known in client.nodes().nodes):
        raise CliFailure(f"There is no node {node!r}; see: dgpu nodes", ExitCode.NOT_FOUND)


@app.command()
def recover(
    ctx: typer.Context,
    names: Annotated[
        list[str], typer.Argument(metavar="GPU...", help="A UUID, its first characters, or NODE:INDEX.")
    ],
    reason: Annotated[str, typer.Option("--reason", "-r", metavar="R", help="What was done.")] = "",
) -> None:
    """Check a GPU that is out of service. If it passes, it gets low-priority tasks first, then all."""
    flags = flags_of(ctx)
    client = connect(flags)
    known = builtins(client.gpus())["gpus"]
    chosen = [_resolved(name, known) for name in names]
    for_each(
        chosen,
        lambda gpu_id: builtins(client.recover_gpu(gpu_id, reason=reason)),
        lambda answers: print_rows(answers, answers, COLUMNS, "id", flags),
    )


def _resolved(name: str, known: list[dict[str, Any]]) -> str:
    matching = [
        gpu
        for gpu in known
        if name == f"{gpu['node']}:{gpu['index']}" or gpu["uuid"].lower().startswith(name.lower())
    ]
    if len(matching) != 1:
        found = "no GPU" if not matching else f"{len(matching)} GPUs"
        code = ExitCode.USAGE if matching else ExitCode.NOT_FOUND
        raise CliFailure(f"{name!r} names {found}; see: dgpu gpus -o wide", code)
    return str(matching[0]["uuid"])


def _summary(answer: dict[str, Any]) -> str:
    states = ("idle", "busy", "unconfirmed", "draining", "reserved", "offline", "error")
    parts = [f"{answer[state]} {state}" for state in states if answer[state]]
    return f"{answer['total']} in all: {', '.join(parts)}"
