"""Commands for waiting tasks: hold, release, change the priority."""

from __future__ import annotations

from collections.abc import Iterator

from dgpu.core.commands import ChangePriority, HoldTasks, ReleaseTasks
from dgpu.core.decide.quota import priority_too_high
from dgpu.core.decision import Decision
from dgpu.core.events import PriorityChanged, TasksCancelled, TasksHeld, TasksReleased
from dgpu.core.model.array import MAX_TASKS
from dgpu.core.model.ids import TaskId
from dgpu.core.model.task import Task, TaskStatus
from dgpu.core.rejections import Rejection, TaskNotWaiting, UnknownArray, UnknownTask
from dgpu.core.state import ClusterState


def decide_hold(state: ClusterState, command: HoldTasks) -> Decision:
    waiting = _waiting(state, command)
    if isinstance(waiting, Rejection):
        return waiting
    task_ids = tuple(task.id for task in waiting if not task.held)
    return (TasksHeld(at=command.at, task_ids=task_ids),) if task_ids else ()


def decide_let_go(state: ClusterState, command: ReleaseTasks) -> Decision:
    waiting = _waiting(state, command)
    if isinstance(waiting, Rejection):
        return waiting
    task_ids = tuple(task.id for task in waiting if task.held)
    return (TasksReleased(at=command.at, task_ids=task_ids),) if task_ids else ()


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


def end_broken(state: ClusterState, at: int, most: int) -> tuple[TasksCancelled, ...]:
    """Cancels tasks whose dependencies can never be met, the oldest first."""
    broken = state.dependents.broken
    if not broken:
        return ()
    task_ids = tuple(sorted(broken)[:most])
    return (TasksCancelled(at=at, task_ids=task_ids, reason="dependency_failed"),)


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
