from __future__ import annotations

from typing import Annotated

import typer

from dgpu.cli.connection import builtins, connect
from dgpu.cli.failures import note
from dgpu.cli.flags import flags_of
from dgpu.cli.formats import clock, memory
from dgpu.cli.output import Column, print_rows

app = typer.Typer(add_completion=False)

COLUMNS = (
    Column("TENANT", lambda row: str(row["tenant_id"])),
    Column("MODEL", lambda row: str(row["model"]), stretches=True),
    Column("COMMAND", lambda row: str(row["command"]), stretches=True),
    Column("BASE", lambda row: memory(row["base_mb"]), right=True),
    Column("LAST PEAK", lambda row: memory(row["peak_mb"] or None), right=True),
    Column("RUNS", lambda row: str(row["runs"]), right=True),
    Column("OOMS", lambda row: str(row["ooms"]), right=True),
    Column("LEARNED", lambda row: clock(row["updated_at"]), wide=True),
)


@app.command()
def estimate(
    ctx: typer.Context,
    model: Annotated[str | None, typer.Option("--model", metavar="NAME", help="The model.")] = None,
    task_type: Annotated[str | None, typer.Option("--type", metavar="T", help="The task type.")] = None,
    atoms: Annotated[
        int | None, typer.Option("--atoms", metavar="N", min=0, help="The number of atoms.")
    ] = None,
    tenant: Annotated[str | None, typer.Option("--tenant", "-A", metavar="T", help="The tenant.")] = None,
) -> None:
    """Memory estimates of tasks, and the number of runs behind them."""
    flags = flags_of(ctx)
    page = builtins(connect(flags).estimates(tenant=tenant, model=model, task_type=task_type, atoms=atoms))
    print_rows(page, page["estimates"], COLUMNS, "model", flags)
    if not flags.is_table:
        return
    need = page["need"]
    if need is not None:
        told = "from the configuration, no runs yet"
        if need["source"] == "learned":
            told = f"learned from {need['runs']} runs and {need['ooms']} that ran out of memory"
        note(
            f"Such a task needs {need['gpu_memory_mb']} MB: ({need['base_mb']} MB and {need['atoms']} atoms) "
            f"x {need['factor']:g}; {told}."
        )
    elif not page["estimates"]:
        note("No estimates were learned yet. For a model: dgpu estimate --model NAME")
