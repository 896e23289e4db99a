from __future__ import annotations

from typing import Annotated, Any

import typer

from dgpu.cli.connection import builtins, connect
from dgpu.cli.each import for_each, remove_each
from dgpu.cli.effect import print_effect
from dgpu.cli.failures import CliFailure, ExitCode, note
from dgpu.cli.flags import Flags, flags_of
from dgpu.cli.formats import clock, duration, listed, memory, plural, since
from dgpu.cli.output import Column, Row, print_rows, repeat
from dgpu.wire import isolation

app = typer.Typer(add_completion=False)

Names = Annotated[list[str], typer.Argument(metavar="NODE...")]
Reason = Annotated[str, typer.Option("--reason", "-r", metavar="R", help="Shown with the node.")]


def _remark(row: Row) -> str:
    if row["offline_since"]:
        return f"unreachable for {duration(since(row['offline_since']))}"
    if row["unconfirmed_since"]:
        return f"no contact since the scheduler started {duration(since(row['unconfirmed_since']))} ago"
    if row["draining"]:
        running = len(row["tasks"])
        left = f"{plural(running, 'task')} left" if running else "empty"
        return f"{row['drain_reason']} ({left})" if row["drain_reason"] else left
    return ""


COLUMNS = (
    Column("NODE", lambda row: str(row["id"]), stretches=True),
    Column("STATUS", lambda row: str(row["status"])),
    Column("GPUS", lambda row: str(row["gpus"]), right=True),
    Column("FREE", lambda row: str(row["gpus_free"]), right=True),
    Column("MODELS", lambda row: ", ".join(row["gpu_models"]), stretches=True),
    Column("TASKS", lambda row: str(len(row["tasks"])), right=True),
    Column("CPUS", lambda row: f"{row['cpus']:g}", right=True, wide=True),
    Column("RAM", lambda row: memory(row["ram_mb"]), right=True, wide=True),
    Column("ADDRESS", lambda row: str(row["address"]), wide=True),
    Column("VERSION", lambda row: str(row["agent_version"]), wide=True),
    Column("SINCE", lambda row: clock(row["registered_at"]), wide=True),
    Column("ENFORCED", lambda row: ", ".join(row.get("enforced", ())) or "nothing", wide=True),
    Column("LOADED", lambda row: ", ".join(row.get("loaded_models", ())), wide=True),
    Column("REMARK", _remark, stretches=True),
)


@app.callback(invoke_without_command=True)
def nodes(ctx: typer.Context) -> None:
    """Nodes and their GPUs. The subcommands drain, resume, lost and remove take one or more nodes."""
    if ctx.invoked_subcommand is not None:
        return
    flags = flags_of(ctx)
    client = connect(flags)

    def draw() -> None:
        answer = builtins(client.nodes())
        print_rows(answer, answer["nodes"], COLUMNS, "id", flags)
        if flags.is_table and not answer["nodes"]:
            note("No node has registered. Start an agent: dgpu agent --config F, or everything: dgpu up")
        if flags.is_table and (notice := isolation.NOTICES.get(answer.get("isolation", ""))):
            note(notice)

    repeat(draw, flags)


@app.command("list")
def list_nodes(ctx: typer.Context) -> None:
    """All nodes; the same as without a subcommand."""
    flags = flags_of(ctx)
    answer = builtins(connect(flags).nodes())
    print_rows(answer, answer["nodes"], COLUMNS, "id", flags)


@app.command()
def drain(
    ctx: typer.Context,
    names: Names,
    reason: Reason = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the effect.")] = False,
) -> int:
    """Start no new tasks on a node; running tasks continue."""
    flags = flags_of(ctx)
    client = connect(flags)
    if dry_run:
        if len(names) > 1:
            raise typer.BadParameter("--dry-run takes one node")
        return print_effect(builtins(client.whatif({"drain": _checked(names[0])})), flags)
    for name in names:
        _checked(name)

    def show(answers: list[dict[str, Any]]) -> None:
        _print(answers, flags)
        for node in answers:
            left = f"{listed(node['tasks'])} still running there" if node["tasks"] else "no task runs there"
            note(f"{node['id']} takes no new tasks; {left}. To resume: dgpu nodes resume {node['id']}")

    for_each(names, lambda name: builtins(client.drain(name, reason=reason)), show)
    return 0


@app.command()
def resume(ctx: typer.Context, names: Names) -> None:
    """Let a drained node take tasks again."""
    flags = flags_of(ctx)
    client = connect(flags)
    for name in names:
        _checked(name)
    for_each(names, lambda name: builtins(client.resume(name)), lambda answers: _print(answers, flags))


@app.command()
def lost(
    ctx: typer.Context,
    names: Names,
    reason: Reason = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Declare an unreachable node dead, so that its tasks start elsewhere.

    If the node is only disconnected and its tasks still run, a task may run twice.
    """
    flags = flags_of(ctx)
    client = connect(flags)
    for name in names:
        _checked(name)
    if not yes:
        _ask(f"Have all processes on {', '.join(names)} ended? Otherwise tasks may run twice.")
    for_each(
        names,
        lambda name: builtins(client.give_up(name, reason=reason)),
        lambda answers: _print(answers, flags),
    )


@app.command()
def remove(ctx: typer.Context, names: Names) -> None:
    """Remove a node that is offline and holds no task."""
    flags = flags_of(ctx)
    client = connect(flags)
    for name in names:
        _checked(name)
    remove_each(names, client.remove_node, flags)


def _print(answers: list[dict[str, Any]], flags: Flags) -> None:
    print_rows(answers, answers, COLUMNS, "id", flags)


def _checked(name: str) -> str:
    if not name or "/" in name:
        raise typer.BadParameter(f"{name!r} is not the name of a node; see: dgpu nodes")
    return name


def _ask(question: str) -> None:
    import sys

    if not sys.stdin.isatty():
        raise CliFailure(f"{question}\nIf so, confirm with --yes", ExitCode.USAGE)
    typer.confirm(question, abort=True, err=True)
