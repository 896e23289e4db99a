"""How many tasks of each array have which status. Follows from committed events, like all views."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dgpu.core.model.ids import TaskId
from dgpu.core.model.task import Task, TaskStatus


class ArrayCounts:
    """An array is known while one of its tasks is in memory. Its tasks that were forgotten since the start still count;
    those forgotten before the start do not, so the sum may be less than the size of the array.
    """

    def __init__(self, tasks: Iterable[Task]) -> None:
        self._counts: dict[TaskId, dict[TaskStatus, int]] = {}
        self._in_memory: dict[TaskId, int] = {}
        for task in tasks:
            if task.array_id:
                self._add(task.array_id, task.status, 1)
                self._in_memory[task.array_id] = self._in_memory.get(task.array_id, 0) + 1

    def of(self, array_id: TaskId) -> Mapping[TaskStatus, int]:
        return self._counts.get(array_id, {})

    def on_submitted(self, array_id: TaskId, number: int) -> None:
        self._counts[array_id] = {TaskStatus.PENDING: number}
        self._in_memory[array_id] = number

    def on_moved(self, array_id: TaskId, before: TaskStatus, after: TaskStatus) -> None:
        self._add(array_id, before, -1)
        self._add(array_id, after, 1)

    def on_forgotten(self, array_id: TaskId) -> None:
        self._in_memory[array_id] -= 1
        if not self._in_memory[array_id]:
            del self._in_memory[array_id], self._counts[array_id]

    def _add(self, array_id: TaskId, status: TaskStatus, number: int) -> None:
        by_status = self._counts.setdefault(array_id, {})
        by_status[status] = by_status.get(status, 0) + number
