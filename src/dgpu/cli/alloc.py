from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

from dgpu.cli import submission as s
from dgpu.cli.connection import connect, is_final, patiently, poll, task_code
from dgpu.cli.failures import CliFailure, ExitCode, note
from dgpu.cli.flags import flags_of
from dgpu.cli.waiting_notes import WaitNotes

if TYPE_CHECKING:
    from dgpu.cli.local_hold import Hold
    from dgpu.client.sync import Client
    from dgpu.wire.answers import TaskAnswer

app = typer.Typer(add_completion=False)

_NOT_HERE = {
    "nodes": "--nodes",
    "array": "--array",
    "image": "--image",
    "upload": "--upload",
    "workdir": "--workdir",
    "secrets": "--secret",
    "output_file": "--output",
    "error_file": "--error",
}


@app.command(context_settings=s.CONTEXT)
def alloc(
    ctx: typer.Context,
    command: s.Command = None,
) -> int:
    """Hold GPUs of this machine while a local command runs, with CUDA_VISIBLE_DEVICES set. Returns the command's code.

    The GPUs are free again when the command ends. If this client is killed, or the hold ends first (time limit,
    cancel), the command is stopped.
    """
    flags = flags_of(ctx)
    flags.returns_task_code = True
    if not command:
        raise typer.BadParameter("a command is missing; for example: dgpu alloc -G 2 -- ./train.sh")
    client = connect(flags)
    from dgpu.cli.local_hold import holding

    with holding() as hold:
        task_id = client.submit(**_task(ctx, client, hold, command)).task_id
        try:
            task = poll(client, task_id, lambda task: task.status != "pending", WaitNotes(task_id).see)
            gpus = None if is_final(task) else hold.wait_for_gpus(lambda: _is_over(client, task_id))
        except KeyboardInterrupt:
            patiently(lambda: client.cancel(task_id))
            note(f"\ndgpu: {task_id} cancelled")
            return ExitCode.INTERRUPTED
        if gpus is None:
            raise _failed(poll(client, task_id, is_final))
        code = hold.run(command, {"CUDA_VISIBLE_DEVICES": gpus, "DGPU_TASK_ID": task_id})
    if code is not None:
        return code
    ended = poll(client, task_id, is_final)
    note(
        f"dgpu: {task_id} no longer holds its GPUs ({ended.error or ended.reason}); the command was stopped."
    )
    return task_code(ended)


def _task(ctx: typer.Context, client: Client, hold: Hold, command: Sequence[str]) -> dict[str, Any]:
    given = s.given_options(ctx)
    if wrong := next((flag for name, flag in _NOT_HERE.items() if name in given), None):
        raise typer.BadParameter(f"alloc runs a local command; leave out {wrong}")
    task = s.described(given, hold.command)
    own = task.get("constraints", [])
    if not any(str(each).startswith("node") for each in own):
        task["constraints"] = [*own, f"node={'|'.join(_nodes_here(client))}"]
    task.setdefault("name", f"alloc {os.path.basename(command[0])}"[:100])  # noqa: PTH119
    kept = {field: value for field, value in task.items() if field not in {"env", "workdir"}}
    return {**kept, "max_retries": 0}


def _nodes_here(client: Client) -> list[str]:
    from dgpu.cli.local_hold import names_of_this_machine

    names = names_of_this_machine()
    found = [node.id for node in client.nodes().nodes if node.address in names or node.id in names]
    if not found:
        raise CliFailure(
            f"This machine ({min(names)}) is no node of {client.url}. Start an agent here, or name its node: "
            "--constraint node=NAME",
            ExitCode.REFUSED,
        )
    return found


def _is_over(client: Client, task_id: str) -> bool:
    return is_final(patiently(lambda: client.get(task_id)))


def _failed(task: TaskAnswer) -> CliFailure:
    why = task.error or task.reason or task.status
    return CliFailure(
        f"{task.task_id} could not hold GPUs on this machine: {why}. See: dgpu logs {task.task_id}"
    )
