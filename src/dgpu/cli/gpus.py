from __future__ import annotations

from typing import Annotated, Any

import typer

from dgpu.cli.connection import builtins, connect
from dgpu.cli.failures import note
from dgpu.cli.flags import flags_of
from dgpu.cli.formats import memory
from dgpu.cli.output import Column, Row, print_rows, repeat

app = typer.Typer(add_completion=False)


def _number(key: str, unit: str) -> Any:
    return lambda row: "" if row[key] is None else f"{row[key]}{unit}"


def _memory(row: Row) -> str:
    used = memory(row["memory_used_mb"]) or "?"
    return f"{used}/{memory(row['memory_total_mb'])}"


COLUMNS = (
    Column("NODE", lambda row: str(row["node"]), stretches=True),
    Column("GPU", lambda row: str(row["index"]), right=True),
    Column("MODEL", lambda row: str(row["model"]), stretches=True),
    Column("STATUS", lambda row: str(row["status"])),
    Column("UTIL", _number("utilization_percent", "%"), right=True),
    Column("MEMORY", _memory, right=True),
    Column("FOREIGN", lambda row: memory(row["memory_foreign_mb"] or None), right=True, wide=True),
    Column("TEMP", _number("temperature_c", "°C"), right=True),
    Column("POWER", _number("power_w", "W"), right=True, wide=True),
    Column("TASKS", lambda row: ",".join(row["tasks"])),
    Column("UUID", lambda row: str(row["uuid"]), wide=True),
    Column("FAULT", lambda row: str(row["fault"]), stretches=True),
)


@app.command()
def gpus(
    ctx: typer.Context,
    node: Annotated[str | None, typer.Option("--node", metavar="NODE", help="Of one node.")] = None,
    status: Annotated[str | None, typer.Option("--status", "-s", metavar="STATE", help="Only these.")] = None,
) -> None:
    """GPUs, their load and the tasks on them."""
    flags = flags_of(ctx)
    client = connect(flags)

    def draw() -> None:
        answer = builtins(client.gpus())
        chosen = [
            gpu for gpu in answer["gpus"] if node in {None, gpu["node"]} and status in {None, gpu["status"]}
        ]
        answer["gpus"] = chosen
        print_rows(answer, chosen, COLUMNS, "id", flags)
        if flags.is_table:
            note(
                _summary(answer)
                if answer["total"]
                else "No GPU has been registered. Is an agent running? dgpu nodes"
            )

    repeat(draw, flags)


def _summary(answer: dict[str, Any]) -> str:
    states = ("idle", "busy", "draining", "reserved", "offline", "error")
    parts = [f"{answer[state]} {state}" for state in states if answer[state]]
    return f"{answer['total']} in all: {', '.join(parts)}"
