from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dgpu.cli import submission as s
from dgpu.cli.connection import builtins, connect, is_final, poll, task_code
from dgpu.cli.effect import print_effect
from dgpu.cli.failures import note
from dgpu.cli.flags import Flags, flags_of
from dgpu.cli.formats import limit, plural, waits_text
from dgpu.cli.output import print_document
from dgpu.cli.uploading import with_uploads

if TYPE_CHECKING:
    from dgpu.client.sync import Client
    from dgpu.wire.answers import TaskAnswer

app = typer.Typer(add_completion=False)


_Count = Annotated[int, typer.Option("--count", metavar="N", min=1, max=10_000, help="Submit N equal tasks.")]
_Allocation = Annotated[
    bool,
    typer.Option("--allocation", help="Hold the GPUs and run nothing, until cancelled or -t is reached."),
]
_Key = Annotated[
    str | None,
    typer.Option("--key", metavar="K", help="A repeated submit with the same key changes nothing."),
]
_FILE = "Tasks of a YAML file, all or none. Flags replace its fields."
_File = Annotated[str | None, typer.Option("--file", "-f", metavar="FILE", help=_FILE)]
_Print = Annotated[
    bool, typer.Option("--print", help="Only show what would be sent, as JSON or with -o yaml.")
]
_DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show the effect.")]
_Wait = Annotated[bool, typer.Option("--wait", help="Wait for the end; return the task's exit code.")]


@app.command(context_settings=s.CONTEXT)
def submit(
    ctx: typer.Context,
    command: s.Command = None,
    count: _Count = 1,
    allocation: _Allocation = False,
    key: _Key = None,
    file: _File = None,
    shown: _Print = False,
    dry_run: _DryRun = False,
    wait: _Wait = False,
) -> int:
    """Queue a command. Prints the task id on stdout, and on stderr whether it runs or why it waits.

    Several words run without a shell, a single quoted text runs in the shell:
    dgpu submit -G 2 -- python train.py, or dgpu submit "make data && python train.py".
    A script with #SBATCH or #DGPU lines is sent with its text: dgpu submit job.sh ARGS. Flags replace its lines.
    """
    flags = flags_of(ctx)
    flags.returns_task_code = wait
    if file is None:
        tasks = [_described(ctx, command or (), allocation=allocation, count=count)]
    elif command or allocation or count > 1:
        raise typer.BadParameter("--file excludes a command, --allocation and --count")
    else:
        from dgpu.cli.jobs.tasks_file import read_tasks

        tasks = read_tasks(file, s.completing(s.given_options(ctx)))
    if shown:
        print_document(_body(tasks, count), flags)
        return 0
    client = connect(flags)
    tasks = with_uploads(client, tasks, is_sent=not dry_run)
    if dry_run:
        return print_effect(builtins(client.whatif({"submit": _trial(tasks, count)})), flags)
    if len(tasks) > 1:
        ids = _submit_several(client, tasks, key, flags)
    elif count > 1:
        ids = client.submit_copies(count, idempotency_key=key, **tasks[0])
        _print_ids(ids, {"task_ids": ids}, flags)
        note(f"{plural(count, 'task')} submitted. To see them: dgpu ps")
    else:
        ids = _submit_one(client, tasks[0], key, flags, tells=flags.is_table and not wait)
    return _wait(client, ids) if wait else 0


def _body(tasks: list[dict[str, Any]], count: int) -> dict[str, Any]:
    """The body of the request."""
    if len(tasks) > 1:
        return {"tasks": tasks}
    return {"task": tasks[0], "count": count} if count > 1 else tasks[0]


def _trial(tasks: list[dict[str, Any]], count: int) -> dict[str, Any]:
    if len(tasks) > 1:
        raise typer.BadParameter("--dry-run takes a file with one task; --print shows what would be sent")
    return {"task": tasks[0], "count": count} if count > 1 else {"task": tasks[0]}


def _submit_one(
    client: Client, task: dict[str, Any], key: str | None, flags: Flags, *, tells: bool
) -> list[str]:
    answer = client.submit(idempotency_key=key, **task)
    ids = [answer.task_id]  # of an array, it means all of its tasks
    _print_ids(ids, builtins(answer), flags)
    if "array" in task or "grid" in task:
        number = answer.task_id.removeprefix("task-")
        note(f"An array of {plural(answer.count, 'task')}. To see them: dgpu ps {number}")
    elif tells:
        submitted = client.get(answer.task_id)
        note(verdict(submitted))
        if submitted.timeout_seconds and "timeout_seconds" not in task:
            note(f"Time limit: {limit(submitted.timeout_seconds)}, the default. To change it: -t 2h")
    return ids


def _submit_several(client: Client, tasks: list[dict[str, Any]], key: str | None, flags: Flags) -> list[str]:
    every = client.submit_batch(tasks, idempotency_key=key)
    sizes = list(map(_size, tasks))
    ids = [
        every[place] for place in accumulate(sizes[:-1], initial=0)
    ]  # of an array, it means all of its tasks
    _print_ids(ids, {"task_ids": every}, flags)
    note(f"{plural(len(every), 'task')} submitted. To see them: dgpu ps")
    return ids


def _size(task: dict[str, Any]) -> int:
    """The number of tasks of an accepted one: of an array, or of all combinations of a grid."""
    from dgpu.core.model.array import size
    from dgpu.wire import fields, grids

    ranges = fields.array(task["array"]).ranges if "array" in task else ()
    if ranges:
        return size(ranges)
    return grids.size_of(grids.grid(task["grid"])) if "grid" in task else 1


def _described(ctx: typer.Context, command: Sequence[str], *, allocation: bool, count: int) -> dict[str, Any]:
    """The task that the options describe; options that contradict each other are refused."""
    if not command and not allocation:
        raise typer.BadParameter("a command is missing; for example: dgpu submit -- python train.py")
    task = s.task_fields(ctx, command)
    if allocation:
        task["allocation"] = True
    if count > 1 and ("array" in task or "grid" in task):
        raise typer.BadParameter("--count and --array or --grid exclude each other")
    return task


def _print_ids(ids: list[str], document: dict[str, Any], flags: Flags) -> None:
    if flags.is_table or flags.output == "name":
        typer.echo("\n".join(ids))
    else:
        print_document(document, flags)


def verdict(task: TaskAnswer) -> str:
    if task.status == "pending":
        return waits_text(task.blockers, task.waiting or "it is queued")
    if task.status == "running" and task.allocation:
        return f"It holds {', '.join(task.allocated_gpu_names) or f'its place on {task.node}'}."
    if task.status == "running":
        return f"It runs on {task.node}." if not task.cancelling else "It is being cancelled."
    return f"It has ended: {task.error or task.status}."


def _wait(client: Client, ids: list[str]) -> int:
    try:
        codes = [task_code(poll(client, task_id, is_final)) for task_id in ids]
    except KeyboardInterrupt:
        it = ids[0] if len(ids) == 1 else "the tasks"
        goes_on = "continues" if len(ids) == 1 else "continue"
        note(f"dgpu: not waiting any longer; {it} {goes_on}. To cancel: dgpu cancel ID")
        raise
    return next((code for code in codes if code), 0)
