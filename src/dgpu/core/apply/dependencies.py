"""Applies events to the dependencies of waiting tasks, and to held tasks."""

from __future__ import annotations

from msgspec.structs import replace

from dgpu.core.events import TasksHeld, TasksReleased
from dgpu.core.model.dependencies import Awaited, Dependency
from dgpu.core.model.ids import TaskId
from dgpu.core.model.task import Task
from dgpu.core.state import ClusterState


def await_others(state: ClusterState, task_ids: list[TaskId], on: tuple[Dependency, ...]) -> None:
    awaited = Awaited(on=on)
    for task_id in task_ids:
        state.after[task_id] = awaited
        state.dependents.link(task_id, awaited)


def wait_no_more(state: ClusterState, task: Task) -> str:
    """A waiting task has ended. Returns the reason if its dependency can no longer be met."""
    awaited = state.after.pop(task.id, None)
    if awaited is None:
        return ""
    state.dependents.unlink(task.id, awaited)
    return f"it waited for {awaited.broken.in_words()}, which ended otherwise" if awaited.broken else ""


def tell_dependents(state: ClusterState, ended: Task) -> None:
    """Dependents that waited for this outcome may start. Dependents that waited for another outcome never will."""
    for task_id in state.dependents.take(ended.id):
        awaited = state.after[task_id]
        dependency = next(each for each in awaited.on if each.task_id == ended.id)
        rest = tuple(each for each in awaited.on if each.task_id != ended.id)
        if not dependency.is_met_by(ended.status):
            state.dependents.unlink(task_id, awaited)
            state.after[task_id] = broken = Awaited(broken=dependency)
            state.dependents.link(task_id, broken)
        elif rest:
            state.after[task_id] = Awaited(on=rest)
        else:
            del state.after[task_id]
            _unpark(state, state.tasks[task_id])


def apply_held(state: ClusterState, event: TasksHeld) -> None:
    for task_id in event.task_ids:
        task = state.tasks[task_id]
        if not state.is_apart(task):
            state.let_go(task_id)
            state.queue.park(task)
            state.stirred = True
        state.tasks[task_id] = replace(task, held=True)


def apply_released(state: ClusterState, event: TasksReleased) -> None:
    for task_id in event.task_ids:
        task = state.tasks[task_id] = replace(state.tasks[task_id], held=False)
        _unpark(state, task)


def _unpark(state: ClusterState, task: Task) -> None:
    if not state.is_apart(task):
        state.queue.unpark(task)
