"""Conditions of a waiting task itself that keep it from being placed, regardless of room: it is held, it waits for
other tasks, or its array runs its maximum of tasks.
"""

from __future__ import annotations

from typing import Final

from dgpu.core.foresight.blockers import Blocker, blocker
from dgpu.core.model.dependencies import Dependency
from dgpu.core.model.ids import task_name
from dgpu.core.model.task import Shape, Task
from dgpu.core.state import ClusterState

_MAX_NAMED: Final = 5


def conditions_of(state: ClusterState, task: Task) -> list[Blocker]:
    found: list[Blocker] = []
    if task.held:
        found.append(blocker("held", "it is held; it can be placed once it is released"))
    awaited = state.after.get(task.id)
    if awaited is not None:
        if awaited.broken is not None:
            detail = f"it waited for {awaited.broken.in_words()}, which ended otherwise: it is about to be cancelled"
            found.append(blocker("dependency_failed", detail, **_of_tasks((awaited.broken,))))
        else:
            found.append(_dependencies(awaited.on))
    shape = state.shapes[task.shape_id]
    running = state.queue.arrays.get(shape.array_id, 0) if shape.array_id else 0
    if shape.array_id and running >= shape.array_limit:
        found.append(_array_full(shape, running))
    return found


def _dependencies(on: tuple[Dependency, ...]) -> Blocker:
    named = ", ".join(each.in_words() for each in on[:_MAX_NAMED])
    more = f" and {len(on) - _MAX_NAMED} more" if len(on) > _MAX_NAMED else ""
    return blocker("dependency", f"it waits for {named}{more}", **_of_tasks(on))


def _of_tasks(on: tuple[Dependency, ...]) -> dict[str, int | str]:
    names = ", ".join(f"{task_name(each.task_id)}:{each.when}" for each in on[:_MAX_NAMED])
    return {"tasks": names, "number": len(on)}


def _array_full(shape: Shape, running: int) -> Blocker:
    detail = f"{running} tasks of its array run, and at most {shape.array_limit} may run at once"
    array = task_name(shape.array_id)
    return blocker("array_limit", detail, array=array, running=running, limit=shape.array_limit)
