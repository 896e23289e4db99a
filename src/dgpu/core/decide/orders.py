"""Orders of users for submitted tasks: hold, release, change the priority, cancel. Cancelled tasks end at once if they
wait, and when their end is reported if they run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dgpu.core.commands import CancelTasks, ChangePriority, HoldTasks, ReleaseTasks
from dgpu.core.decide.endings import cancelled
from dgpu.core.decide.quota import priority_too_high
from dgpu.core.decision import Decision
from dgpu.core.events import (
    Event,
    PriorityChanged,
    TaskCancelRequested,
    TasksCancelled,
    TasksHeld,
    TasksReleased,
)
from dgpu.core.model.array import MAX_TASKS
from dgpu.core.model.ids import TaskId
from dgpu.core.model.task import Shape, Task, TaskStatus
from dgpu.core.rejections import Rejection, TaskEnded, TaskNotWaiting, UnknownArray, UnknownTask
from dgpu.core.state import ClusterState


def decide_hold(state: ClusterState, command: HoldTasks | ReleaseTasks) -> Decision:
    """Holds or releases tasks."""
    waiting = _waiting(state, command)
    if isinstance(waiting, Rejection):
        return waiting
    releases = isinstance(command, ReleaseTasks)
    task_ids = tuple(task.id for task in waiting if task.held is releases)
    made = TasksReleased if releases else TasksHeld
    return (made(at=command.at, task_ids=task_ids),) if task_ids else ()


def decide_priority(state: ClusterState, command: ChangePriority) -> Decision:
    waiting = _waiting(state, command)
    if isinstance(waiting, Rejection):
        return waiting
    for task in waiting:
        tenant = state.tenants.get(state.shapes[task.shape_id].tenant_id)
        too_high = None if tenant is None else priority_too_high(tenant, command.priority, 0)
        if too_high is not None:
            return too_high
    had = ((task.id, state.shapes[task.shape_id].priority) for task in waiting)
    changed = tuple(each for each in had if each[1] != command.priority)
    return (PriorityChanged(at=command.at, priority=command.priority, tasks=changed),) if changed else ()


def end_broken(state: ClusterState, at: int, most: int) -> TasksCancelled:
    """Cancels tasks whose dependencies can never be met, the oldest first."""
    task_ids = tuple(sorted(state.dependents.broken)[:most])
    return TasksCancelled(at=at, task_ids=task_ids, reason="dependency_failed")


def array_tasks(state: ClusterState, array_id: TaskId) -> Iterator[Task]:
    """The tasks that are still in memory. Ids of an array are consecutive, and its size is bounded."""
    for number in range(array_id, array_id + MAX_TASKS):
        task = state.tasks.get(TaskId(number))
        if task is not None and task.array_id == array_id:
            yield task


def _waiting(
    state: ClusterState, command: HoldTasks | ReleaseTasks | ChangePriority
) -> list[Task] | UnknownTask | UnknownArray | TaskNotWaiting:
    """The addressed tasks. Of an array, only waiting tasks count; tasks named by id must all be waiting."""
    if command.array_id is not None:
        tasks = list(array_tasks(state, command.array_id))
        if not tasks:
            return UnknownArray(array_id=command.array_id)
        return [task for task in tasks if task.status is TaskStatus.PENDING]
    found: list[Task] = []
    for task_id in sorted(set(command.task_ids)):
        task = state.tasks.get(task_id)
        if task is None:
            return UnknownTask(task_id=task_id)
        if task.status is not TaskStatus.PENDING:
            return TaskNotWaiting(task_id=task_id, status=task.status.value)
        found.append(task)
    return found


def decide_cancel(state: ClusterState, command: CancelTasks) -> Decision:
    if command.task_ids is None:
        if command.array_id is not None and not any(array_tasks(state, command.array_id)):
            return UnknownArray(array_id=command.array_id)
        return cancel(state, _filtered(state, command), command.at)
    task_ids = sorted(set(command.task_ids))
    for task_id in task_ids:
        if task_id not in state.tasks:
            return UnknownTask(task_id=task_id)
    if len(task_ids) == 1:
        task = state.tasks[task_ids[0]]
        if task.status.is_final:
            return TaskEnded(task_id=task.id, status=task.status.value)
    return cancel(state, task_ids, command.at)


def cancel(state: ClusterState, task_ids: Iterable[TaskId], at: int) -> tuple[Event, ...]:
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
