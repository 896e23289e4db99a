from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dgpu.cli.arguments import parse_ids
from dgpu.cli.array_output import follow_outputs, show_outputs
from dgpu.cli.connection import connect
from dgpu.cli.failures import note
from dgpu.cli.flags import Flags, flags_of
from dgpu.cli.following import OutputFollower
from dgpu.cli.formats import in_our_zone
from dgpu.cli.output_documents import print_array_outputs, print_output
from dgpu.cli.terminal_output import output_writer
from dgpu.client.language import waiting

if TYPE_CHECKING:
    from dgpu.client.sync import Client
    from dgpu.wire.answers import TaskAnswer

app = typer.Typer(add_completion=False)


@app.command()
def logs(
    ctx: typer.Context,
    task: Annotated[str, typer.Argument(metavar="ID", help="42 or task-42; in an array 42_3.")],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow until the task ends.")] = False,
    tail: Annotated[
        int | None, typer.Option("--tail", "-n", metavar="N", min=0, help="Only the last N lines.")
    ] = None,
    head: Annotated[
        int | None, typer.Option("--head", metavar="N", min=0, help="Only the first N lines.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="WHEN", help="Only newer lines: 10m, 2h, or 2026-11-18T08:00:00Z."),
    ] = None,
    grep: Annotated[
        str | None, typer.Option("--grep", metavar="PATTERN", help="Only lines that match: 'loss|error'.")
    ] = None,
    times: Annotated[bool, typer.Option("--times", "-T", help="The time before each line, in UTC.")] = False,
    stderr: Annotated[bool, typer.Option("--stderr", help="Only stderr.")] = False,
    attempt: Annotated[
        int | None, typer.Option("--attempt", metavar="N", min=1, help="Number of an earlier attempt.")
    ] = None,
    rank: Annotated[
        int | None, typer.Option("--rank", metavar="N", min=0, help="Rank of a task over several nodes. [0]")
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Send all control sequences of the task to the terminal.")
    ] = False,
) -> None:
    """The output of a task (stdout and stderr), also after its end and without its node.

    Of an array, the output of its tasks one after another. With -f, lines begin with the index of their task.
    On a terminal, control sequences other than colours are shown as "?". In a pipe nothing is changed.
    -o json prints one document for each task, with its output as text.
    """
    if head is not None and tail is not None:
        raise typer.BadParameter("--head and --tail exclude each other")
    (task_id,) = parse_ids([task])
    chosen: dict[str, Any] = {
        "head": head,
        "since": None if since is None else _moment(since),
        "grep": grep,
        "times": times,
        "stream": "stderr" if stderr else None,
    }
    client = connect(flags := flags_of(ctx))
    if not flags.is_table:
        _print(client, task_id, {**chosen, "tail": tail}, attempt, rank, flags, follow=follow)
        return
    _show(client, task_id, attempt, rank, tail, chosen, follow=follow, raw=raw)


def _print(
    client: Client,
    task_id: str,
    chosen: dict[str, Any],
    attempt: int | None,
    rank: int | None,
    flags: Flags,
    *,
    follow: bool,
) -> None:
    if follow:
        raise typer.BadParameter(f"-f shows text as it is written; -o {flags.output} needs the whole output")
    found = client.get(task_id)
    if found.array is None or found.array.count == 1:
        print_output(client, found, {**chosen, "attempt": attempt, "rank": rank}, flags)
        return
    _refuse_one_run(task_id, attempt, rank)
    print_array_outputs(client, found, chosen, flags)


def _refuse_one_run(task_id: str, attempt: int | None, rank: int | None) -> None:
    if attempt is not None or rank is not None:
        name = task_id.removeprefix("task-")
        raise typer.BadParameter(f"--attempt and --rank are of one task; name it, for example {name}_0")


def _show(
    client: Client,
    task_id: str,
    attempt: int | None,
    rank: int | None,
    tail: int | None,
    chosen: dict[str, Any],
    *,
    follow: bool,
    raw: bool,
) -> None:
    """`chosen`: further arguments of Client.stream_logs."""
    found = client.get(task_id)
    if found.array is not None and found.array.count > 1:
        _refuse_one_run(task_id, attempt, rank)
        show = follow_outputs if follow else show_outputs
        show(client, found, lambda: output_writer(raw=raw), tail, chosen)
        return
    write = output_writer(raw=raw)
    if follow:
        output = OutputFollower(client, task_id, attempt, tail=tail, rank=rank, write=write, chosen=chosen)
        output.follow()
        if not output.is_silent:
            return
    empty = True
    for piece in client.stream_logs(task_id, tail=tail, attempt=attempt, rank=rank, **chosen):
        empty = False
        write(piece)
    if not empty or 0 in {tail, chosen["head"]}:
        return
    is_choice = any(chosen[name] is not None for name in ("grep", "since", "stream"))
    note("No line of the output matches." if is_choice else _nothing(client.get(task_id), attempt))


def _nothing(found: TaskAnswer, attempt: int | None) -> str:
    """Explains empty output. Lost or unreachable output is an error instead."""
    why = waiting(found.blockers, found.waiting) or found.status
    ended = "it is running" if found.status == "running" else f"it has ended ({found.status})"
    state = why if found.status == "pending" else ended
    if attempt is not None and attempt != found.attempt:
        return f"Attempt {attempt} of {found.task_id} has written nothing."
    return f"{found.task_id} has written nothing{' yet' if found.status == 'running' else ''}: {state}"


def _moment(text: str) -> str | None:
    """An age becomes a time: a follower that asks again must mean the same moment."""
    from dgpu.wire.time_range import duration_ms

    ago_ms = duration_ms(text)
    if ago_ms is None:
        return in_our_zone(text)
    return (dt.datetime.now(dt.UTC) - dt.timedelta(milliseconds=ago_ms)).isoformat(timespec="milliseconds")
