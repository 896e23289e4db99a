"""The rows of tasks: an array is one row with its progress, and its tasks follow it if it was opened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dgpu.cli.ps import gpus_of, name_of, place_of
from dgpu.cli.task_pages import id_of
from dgpu.wire import answers

_INDENT = "  "


class TaskRow(msgspec.Struct, frozen=True, kw_only=True):
    task_id: str
    name: str
    status: str
    priority: int | str
    priority_value: int
    gpus: str
    tenant_id: str
    pool: str
    since: str | None  # the start of a running task, the submission of a waiting one
    place: int  # in the queue; 0: running
    where: str  # where it runs, or why it waits; of an array, its progress
    tasks: int = 1  # running and waiting ones that the row stands for; 0: its array has a row, too
    array_id: str = ""  # of a row that stands for an array

    @property
    def number(self) -> int:
        return int(self.task_id.removeprefix("task-").partition("_")[0])


def task_rows(
    running: Sequence[answers.TaskAnswer],
    queue: Sequence[answers.QueueEntry],
    newest: Sequence[answers.TaskAnswer],
    inside: Mapping[str, Sequence[answers.TaskAnswer]],
) -> list[TaskRow]:
    """`running` and `newest` are folded lists, `inside` has the tasks of opened arrays."""
    known = {task.array_id or task.task_id: task for task in newest}
    waiting = {entry.task_id for entry in queue}
    rows: list[TaskRow] = []
    folded: set[str] = set()
    for task in reversed(running):
        if task.array is None and task.task_id not in waiting:
            rows.append(_running(task))
        elif task.array is not None and task.array_id is not None:
            folded.add(task.array_id)
            rows += _array(task, 0, inside)
    for entry in queue:
        if entry.array_id is None:
            rows.append(_waiting(entry, known.get(entry.task_id)))
        elif entry.array_id not in folded:
            folded.add(entry.array_id)
            found = known.get(entry.array_id)
            if found is not None and found.array is not None:
                rows += _array(found, entry.position, inside)
            else:
                rows.append(_waiting(entry, found))
    shown = {row.task_id for row in rows}
    # A long array fills the first page of the queue. Other waiting tasks are known from the list.
    for name, task in reversed(known.items()):
        if name not in shown and name not in folded:
            rows += (
                _array(task, len(queue) + 1, inside)
                if task.array is not None
                else [_later(task, len(queue) + 1)]
            )
    return rows


def _array(
    task: answers.TaskAnswer, place: int, inside: Mapping[str, Sequence[answers.TaskAnswer]]
) -> list[TaskRow]:
    array_id, array = str(task.array_id), task.array
    row: dict[str, Any] = msgspec.to_builtins(task)
    whole = TaskRow(
        task_id=array_id,
        name=name_of({**row, "array_index": None}),
        status="pending" if array is None or not array.running else "running",
        priority=task.priority,
        priority_value=task.priority_value,
        gpus=gpus_of(row),
        tenant_id=task.tenant_id,
        pool=task.pool,
        since=task.created_at,
        place=place,
        where=place_of(row, short=True),
        tasks=0 if array is None else array.running + array.pending,
        array_id=array_id,
    )
    below = [_element(each) for each in inside.get(array_id, ())]
    return [whole, *below]


def _element(task: answers.TaskAnswer) -> TaskRow:
    row: dict[str, Any] = msgspec.to_builtins(task)
    shown = _running(task) if task.status == "running" else None
    return msgspec.structs.replace(
        shown or _later(task, 1),
        task_id=id_of(row),
        name=_INDENT + name_of(row),
        tasks=0,
    )


def _running(task: answers.TaskAnswer) -> TaskRow:
    row: dict[str, Any] = msgspec.to_builtins(task)
    status = "stopping" if task.cancelling else task.status
    return _row(row, task, status=status, since=task.started_at, place=0)


def _row(
    row: Mapping[str, Any], task: answers.TaskAnswer, *, status: str, since: str | None, place: int
) -> TaskRow:
    return TaskRow(
        task_id=task.task_id,
        name=name_of(row),
        status=status,
        priority=task.priority,
        priority_value=task.priority_value,
        gpus=gpus_of(row),
        tenant_id=task.tenant_id,
        pool=task.pool,
        since=since,
        place=place,
        where=place_of(row, short=True),
    )


def _later(task: answers.TaskAnswer, place: int) -> TaskRow:
    row: dict[str, Any] = msgspec.to_builtins(task)
    return _row(row, task, status=task.status, since=task.created_at, place=place)


def _waiting(entry: answers.QueueEntry, task: answers.TaskAnswer | None) -> TaskRow:
    """A task far back in the queue shows its position; its reason is loaded when it is selected."""
    row: dict[str, Any] = msgspec.to_builtins(entry)
    return TaskRow(
        task_id=entry.task_id,
        name=name_of(row),
        status="pending",
        priority=entry.priority,
        priority_value=entry.priority_value,
        gpus=gpus_of(row),
        tenant_id=entry.tenant_id,
        pool=entry.pool,
        since=entry.created_at,
        place=entry.position,
        where=f"position {entry.position:,} in the queue"
        if task is None
        else place_of(msgspec.to_builtins(task), short=True),
    )
