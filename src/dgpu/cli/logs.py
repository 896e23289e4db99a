from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dgpu.cli.arguments import parse_ids
from dgpu.cli.array_output import follow_outputs, show_outputs
from dgpu.cli.connection import connect
from dgpu.cli.failures import note
from dgpu.cli.flags import flags_of
from dgpu.cli.following import OutputFollower
from dgpu.cli.terminal_output import output_writer
from dgpu.client.language import waiting

if TYPE_CHECKING:
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
    """
    client = connect(flags_of(ctx))
    write = output_writer(raw=raw)
    (task_id,) = parse_ids([task])
    found = client.get(task_id)
    if found.array is not None and found.array.count > 1:
        if attempt is not None or rank is not None:
            raise typer.BadParameter(f"--attempt and --rank are of one task; name it, for example {task}_0")
        show = follow_outputs if follow else show_outputs
        show(client, found, lambda: output_writer(raw=raw), tail)
        return
    if follow:
        output = OutputFollower(client, task_id, attempt, tail=tail, rank=rank, write=write)
        output.follow()
        if not output.is_silent:
            return
    empty = True
    for piece in client.logs(task_id, tail=tail, attempt=attempt, rank=rank):
        empty = False
        write(piece)
    if empty and tail != 0:
        note(_nothing(client.get(task_id), attempt))


def _nothing(found: TaskAnswer, attempt: int | None) -> str:
    """Explains empty output. Lost or unreachable output is an error instead."""
    why = waiting(found.blockers, found.waiting) or found.status
    state = why if found.status == "pending" else f"it is {found.status}"
    if attempt is not None and attempt != found.attempt:
        return f"Attempt {attempt} of {found.task_id} has written nothing."
    return f"{found.task_id} has written nothing{' yet' if found.status == 'running' else ''}: {state}"
