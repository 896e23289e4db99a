"""Looks up the dependencies of a submitted task in the history. Separate from the calls of the frame, so that a submit
does not wait for the frame.
"""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from dgpu.core.commands import SubmitTasks
from dgpu.core.model.dependencies import ANY_INDEX
from dgpu.core.model.ids import TaskId
from dgpu.core.rejections import DependencyForgotten, DependencyNeverMet, Rejection, UnknownDependency
from dgpu.service.rest.backend import Backend


async def look_up(
    backend: Backend, command: SubmitTasks, forgotten: DependencyForgotten
) -> SubmitTasks | Rejection:
    """The command with facts of the history about tasks that left the memory, or the reason of its refusal."""
    number, spec = command.entries[forgotten.entry]
    after = {each.task_id: each for each in spec.after}
    for dependency in forgotten.on:
        task_id = dependency.task_id
        row = await asyncio.to_thread(backend.history.task, task_id)
        if row is None or not row.status.is_final:
            return UnknownDependency(entry=forgotten.entry, task_id=task_id, forgotten=True)
        if not dependency.is_met_by(row.status):
            return DependencyNeverMet(
                entry=forgotten.entry, task_id=task_id, when=dependency.when.value, status=row.status.value
            )
        if row.array_id == task_id and task_id in after and after[task_id].index == ANY_INDEX:
            # The id of an array means all of its tasks, and by now only the history knows that it was an array.
            for other in range(task_id + 1, task_id + row.array_count):
                after.setdefault(TaskId(other), replace(dependency, task_id=TaskId(other)))
    changed = (number, replace(spec, after=tuple(sorted(after.values()))))
    entries = (*command.entries[: forgotten.entry], changed, *command.entries[forgotten.entry + 1 :])
    return replace(command, entries=entries, met=(*command.met, *forgotten.on))
