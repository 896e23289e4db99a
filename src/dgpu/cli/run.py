from __future__ import annotations

import functools
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dgpu.cli import submission as s
from dgpu.cli.array_output import run_array
from dgpu.cli.connection import connect, is_final, patiently, poll, task_code
from dgpu.cli.failures import ExitCode, note
from dgpu.cli.flags import flags_of
from dgpu.cli.following import OutputFollower, write_output
from dgpu.cli.stdin import unread_input
from dgpu.cli.uploading import with_uploads
from dgpu.cli.waiting_notes import WaitNotes
from dgpu.client.language import error_text

if TYPE_CHECKING:
    from dgpu.client.sync import Client
    from dgpu.wire.answers import TaskAnswer

app = typer.Typer(add_completion=False)


@app.command(context_settings=s.CONTEXT)
def run(
    ctx: typer.Context,
    command: s.Command = None,
    terminal: Annotated[
        bool, typer.Option("-it", "--terminal", help="With a terminal. Ctrl-P Ctrl-Q detaches.")
    ] = False,
) -> int:
    """Queue a command, show its live output, and return its exit code. Ctrl-C cancels the task.

    Lines of the tasks of an array begin with their index, and the first exit code that is not 0 is returned.
    With -it, Ctrl-C goes to the command, and after a detach or a lost connection the task continues: dgpu attach ID.
    """
    flags = flags_of(ctx)
    flags.returns_task_code = True
    if not command:
        raise typer.BadParameter("a command is missing; for example: dgpu run -- python train.py")
    if terminal:
        return run_at_terminal(ctx, command)
    client = connect(flags)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM cancels the task too
    task = s.task_fields(ctx, command)
    told = _tell_of_input()
    task_id = client.submit(**with_uploads(client, [task])[0]).task_id
    if "array" in task or "grid" in task:
        return run_array(client, task_id, lambda: write_output)
    return follow_task(client, task_id, told=told)


def follow_task(client: Client, task_id: str, *, told: bool = False) -> int:
    """Shows the output and returns the exit code. `told`: a note about unread input was printed already."""
    attempts = _Attempts(client, task_id)
    try:
        ended = attempts.follow()
    except KeyboardInterrupt:
        return _cancel(client, task_id, attempts)
    if not told:
        _tell_of_input()  # the writer of the pipe may have been slow
    if ended.status != "success":
        note(f"dgpu: {task_id} {ended.status}: {error_text(ended.error) or ended.reason}")
    return task_code(ended)


def run_at_terminal(
    ctx: typer.Context, command: Sequence[str], *, without_terminal: str = "Leave out -it"
) -> int:
    from dgpu.cli.conversation import require_terminal

    flags = flags_of(ctx)
    flags.returns_task_code = True
    require_terminal(without_terminal)
    client = connect(flags)
    return follow_at_terminal(client, s.task_fields(ctx, command))


def follow_at_terminal(client: Client, task: dict[str, Any]) -> int:
    """Ctrl-C cancels the task only while it waits."""
    from dgpu.cli.conversation import terminal_variables
    from dgpu.cli.terminal_task import follow_terminal

    task["terminal"] = True
    task["env"] = terminal_variables() | task.get("env", {})
    task_id = client.submit(**with_uploads(client, [task])[0]).task_id
    try:
        return follow_terminal(client, task_id)
    except KeyboardInterrupt:
        return _cancel(client, task_id, _Attempts(client, task_id))


def _tell_of_input() -> bool:
    kind = unread_input()
    if kind:
        note(
            f"dgpu: The {kind} on standard input is not sent: a task has no input. Let it read a file instead."
        )
    return bool(kind)


class _Attempts:
    """Shows the output attempt by attempt: after an attempt that failed with its node, the next one."""

    def __init__(self, client: Client, task_id: str) -> None:
        self._client = client
        self._task_id = task_id
        self._output: OutputFollower | None = None  # of the current attempt

    def follow(self) -> TaskAnswer:
        waiting = WaitNotes(self._task_id)
        while True:
            task = poll(self._client, self._task_id, lambda task: task.status != "pending", waiting.see)
            if task.attempt:
                self._output = OutputFollower(self._client, self._task_id, task.attempt)
                self._output.follow()
            task = poll(self._client, self._task_id, functools.partial(_is_past, task.attempt))
            if is_final(task):
                return task

    def show_last_words(self) -> None:
        """Shows the output until the end: the last lines of a stopped task often matter most."""
        if self._output is not None:
            self._output.follow()


def _is_past(attempt: int, task: TaskAnswer) -> bool:
    return task.status != "running" or task.attempt > attempt


def _cancel(client: Client, task_id: str, attempts: _Attempts) -> int:
    note(f"\ndgpu: cancelling {task_id}")
    try:
        patiently(lambda: client.cancel(task_id))
        attempts.show_last_words()
        poll(client, task_id, is_final)
    except KeyboardInterrupt:
        note(f"dgpu: not waiting for its end; see: dgpu show {task_id}")
    sys.stdout.flush()
    return ExitCode.INTERRUPTED
