"""Cancelling: waiting tasks end at once, running tasks when their end is reported."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dgpu.core.commands import CancelTasks
from dgpu.core.decide.endings import cancelled
from dgpu.core.decide.waiting import array_tasks
from dgpu.core.decision import Decision
from dgpu.core.events import Event, TaskCancelRequested, TasksCancelled
from dgpu.core.model.ids import TaskId
from dgpu.core.model.task import Shape, TaskStatus
from dgpu.core.rejections import TaskEnded, UnknownArray, UnknownTask
from dgpu.core.state import ClusterState


def decide_cancel(state: ClusterState, command: CancelTasks) -> Decision:
    if command.task_ids is None:
        if command.array_id is not None and not any(array_tasks(state, command.array_id)):
            return UnknownArray(array_id=command.array_id)
        return _cancel(state, _filtered(state, command), command.at)
    task_ids = sorted(set(command.task_ids))
    for task_id in task_ids:
        if task_id not in state.tasks:
            return UnknownTask(task_id=task_id)
    if len(task_ids) == 1:
        task = state.tasks[task_ids[0]]
        if task.status.is_final:
            return TaskEnded(task_id=task.id, status=task.status.value)
    return _cancel(state, task_ids, command.at)


def _cancel(state: ClusterState, task_ids: Iterable[TaskId], at: int) -> tuple[Event, ...]:
    waiting: list[TaskId] = []
    running: list[Event] = []
    for task_id in task_ids:
        task = state.tasks[task_id]
        if task.status is TaskStatus.PENDING:
            waiting.append(task_id)
        elif task.status is TaskStatus.RUNNING and task.allocation:
            # An allocation has no process and no agent: there is nothing to wait for.
            running.append(cancelled(task, at, at, ""))
        elif task.status is TaskStatus.RUNNING and not task.cancelling:
            running.append(TaskCancelRequested(at=at, task_id=task_id, lease_id=task.lease_id))
    if waiting:
        return (TasksCancelled(at=at, task_ids=tuple(waiting)), *running)
    return tuple(running)


def _filtered(state: ClusterState, command: CancelTasks) -> Iterator[TaskId]:
    if command.array_id is not None:
        for task in array_tasks(state, command.array_id):
            fits = _matches(state.shapes[task.shape_id], command)
            if fits and command.status in {None, task.status} and not task.status.is_final:
                yield task.id
        return
    shape_ids = {shape_id for shape_id, shape in state.shapes.items() if _matches(shape, command)}
    if command.status in {None, TaskStatus.PENDING}:
        yield from sorted(
            task_id
            for shape_id in sorted(shape_ids)
            for line in state.queue.shapes[shape_id].lines.values()
            for task_id in line.after(TaskId(0))
        )
    if command.status in {None, TaskStatus.RUNNING}:
        running = {lease.task_id for lease in state.leases.values()}
        yield from sorted(task_id for task_id in running if state.tasks[task_id].shape_id in shape_ids)


def _matches(shape: Shape, command: CancelTasks) -> bool:
    return (
        (command.tenant_id is None or shape.tenant_id == command.tenant_id)
        and (command.pool is None or shape.pool == command.pool)
        and (command.priority is None or shape.priority == command.priority)
    )
