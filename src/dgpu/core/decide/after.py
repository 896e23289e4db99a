"""Dependencies of a submitted task: which are met already, and which can never be met."""

from __future__ import annotations

from collections.abc import Iterator

from dgpu.core.model.array import MAX_TASKS
from dgpu.core.model.dependencies import MAX_EDGES, Dependency, When
from dgpu.core.model.ids import TaskId
from dgpu.core.model.task import TaskSpec
from dgpu.core.rejections import (
    DependencyForgotten,
    DependencyNeverMet,
    Rejection,
    TooManyDependencies,
    UnknownDependency,
)
from dgpu.core.state import ClusterState


def resolve_after(
    state: ClusterState, spec: TaskSpec, number: int, entry: int, met: tuple[Dependency, ...] = ()
) -> tuple[Dependency, ...] | Rejection:
    """The dependencies that are left. The id of an array stands for all of its tasks."""
    wanted: dict[TaskId, Dependency] = {}
    for named in spec.after:
        if not 0 < named.task_id < state.next_task_id:
            return UnknownDependency(entry=entry, task_id=named.task_id)
        for task_id in _meant(state, named.task_id):
            wanted[task_id] = Dependency(task_id=task_id, when=named.when)
    if len(wanted) * number > MAX_EDGES:
        return TooManyDependencies(entry=entry, number=len(wanted) * number, limit=MAX_EDGES)
    forgotten: list[Dependency] = []
    left: list[Dependency] = []
    looked_up = set(met)
    for task_id, dependency in sorted(wanted.items()):
        task = state.tasks.get(task_id)
        if task is None:
            # The task has ended, but its status is no longer in memory.
            if dependency.when is not When.ANY and dependency not in looked_up:
                forgotten.append(dependency)
        elif not task.status.is_final:
            left.append(dependency)
        elif not dependency.is_met_by(task.status):
            return DependencyNeverMet(
                entry=entry, task_id=task_id, when=dependency.when.value, status=task.status.value
            )
    if forgotten:
        return DependencyForgotten(entry=entry, on=tuple(forgotten))
    return tuple(left)


def _meant(state: ClusterState, task_id: TaskId) -> Iterator[TaskId]:
    task = state.tasks.get(task_id)
    if task is None or task.array_id != task_id:
        return iter((task_id,))
    return map(TaskId, range(task_id, task_id + min(task.array_count, MAX_TASKS)))
