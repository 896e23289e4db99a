from __future__ import annotations

import functools
import signal
import sys
import time
from typing import TYPE_CHECKING

import typer

from dgpu.cli import submission as s
from dgpu.cli.array_output import run_array
from dgpu.cli.connection import connect, is_final, patiently, poll, task_code
from dgpu.cli.failures import ExitCode, note
from dgpu.cli.flags import flags_of
from dgpu.cli.following import OutputFollower, write_output
from dgpu.cli.stdin import unread_input
from dgpu.cli.uploading import with_uploads
from dgpu.client.language import waiting

if TYPE_CHECKING:
    from dgpu.client.sync import Client
    from dgpu.wire.answers import TaskAnswer

app = typer.Typer(add_completion=False)

_SILENT_SECONDS = 0.5  # a shorter wait needs no note
_REPEAT_SECONDS = 15.0


@app.command(context_settings=s.CONTEXT)
def run(
    ctx: typer.Context,
    command: s.Command = None,
) -> int:
    """Queue a command, show its live output, and return its exit code. Ctrl-C cancels the task.

    Lines of the tasks of an array begin with their index, and the first exit code that is not 0 is returned.
    """
    flags = flags_of(ctx)
    flags.returns_task_code = True
    if not command:
        raise typer.BadParameter("a command is missing; for example: dgpu run -- python train.py")
    client = connect(flags)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM cancels the task too
    task = s.task_fields(ctx, command)
    told = _tell_of_input()
    task_id = client.submit(**with_uploads(client, [task])[0]).task_id
    if "array" in task:
        return run_array(client, task_id, lambda: write_output)
    attempts = _Attempts(client, task_id)
    try:
        ended = attempts.follow()
    except KeyboardInterrupt:
        return _cancel(client, task_id, attempts)
    if not told:
        _tell_of_input()  # the writer of the pipe may have been slow
    if ended.status != "success":
        note(f"dgpu: {task_id} {ended.status}: {ended.error or ended.reason}")
    return task_code(ended)


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
        waiting = _WaitNotes(self._task_id)
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


class _WaitNotes:
    """Prints why a task waits: after a short wait, and when the reason changes, at a limited rate."""

    def __init__(self, task_id: str) -> None:
        self._task_id = task_id
        self._due = time.monotonic() + _SILENT_SECONDS
        self._said = ""

    def see(self, task: TaskAnswer) -> None:
        if task.status != "pending" or task.waiting == self._said or time.monotonic() < self._due:
            return
        self._said = task.waiting
        self._due = time.monotonic() + _REPEAT_SECONDS
        note(f"{self._task_id} waits: {waiting(task.blockers, task.waiting)}")


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
