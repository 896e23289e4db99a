"""Attaches to the terminal of a task, attempt by attempt, and returns its exit code."""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING

from dgpu.cli.connection import is_final, poll, task_code
from dgpu.cli.conversation import Ended, converse, window_size
from dgpu.cli.failures import CliFailure, ExitCode, note
from dgpu.cli.waiting_notes import WaitNotes

if TYPE_CHECKING:
    from dgpu.client.sync import Client
    from dgpu.wire.answers import TaskAnswer
    from dgpu.wire.channel_answers import OpenedChannel

_START_SECONDS = 0.1
_MAX_STARTS = 600


def follow_terminal(client: Client, task_id: str, first: TaskAnswer | None = None) -> int:
    """`first`: the task as it was seen. Returns when it has ended, or this client has left."""
    waiting = WaitNotes(task_id)
    task = first
    while True:
        if task is None or task.status == "pending":
            task = poll(client, task_id, lambda seen: seen.status != "pending", waiting.see)
        opened = None if is_final(task) else _open(client, task)
        if opened is not None:
            ended = converse(client, opened, is_terminal=True)
            if ended.reason != "ended":
                return _left(ended, task_id)
        task = poll(client, task_id, functools.partial(_is_past, task.attempt))
        if is_final(task):
            if task.status != "success":
                note(f"dgpu: {task_id} {task.status}: {task.error or task.reason}")
            return task_code(task)


def _is_past(attempt: int, task: TaskAnswer) -> bool:
    return task.status != "running" or task.attempt > attempt


def _open(client: Client, task: TaskAnswer) -> OpenedChannel | None:
    """None: the attempt ended before it could be attached to."""
    from dgpu.client.errors import DgpuError

    for _ in range(_MAX_STARTS):
        try:
            return client.open_channel(task.task_id, size=window_size())
        except DgpuError as error:
            if error.code == "not_running":
                return None
            if error.code not in {"run_not_started", "node_unreachable"}:
                raise
            if is_final(client.get(task.task_id)):
                return None
        time.sleep(_START_SECONDS)
    raise CliFailure(f"{task.task_id} has not started on its node; see: dgpu show {task.task_id}")


def _left(ended: Ended, task_id: str) -> int:
    again = f"Attach again: dgpu attach {task_id}"
    if ended.reason in {"detached", "interrupted"}:
        note(f"\r\ndgpu: detached; {task_id} continues. {again}")
        return ExitCode.OK
    if ended.reason == "replaced":
        note(f"\r\ndgpu: another client has attached to {task_id}. {again}")
    else:
        note(f"\r\ndgpu: {ended.detail} {task_id} continues on its node. {again}")
    return ExitCode.OWN_FAILURE
