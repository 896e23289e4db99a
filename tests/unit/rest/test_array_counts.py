"""The numbers of tasks of an array by status, beside the state."""

from __future__ import annotations

from dgpu.core.model.ids import TaskId
from dgpu.core.model.task import TaskStatus
from dgpu.service.views.array_counts import ArrayCounts

PENDING, RUNNING, SUCCESS = TaskStatus.PENDING, TaskStatus.RUNNING, TaskStatus.SUCCESS
ARRAY = TaskId(7)


def test_forgotten_tasks_count_until_the_last_task_of_the_array_is_forgotten() -> None:
    counts = ArrayCounts(())
    counts.on_submitted(ARRAY, 2)
    for _ in range(2):
        counts.on_moved(ARRAY, PENDING, RUNNING)
        counts.on_moved(ARRAY, RUNNING, SUCCESS)
    counts.on_forgotten(ARRAY)
    assert counts.of(ARRAY) == {PENDING: 0, RUNNING: 0, SUCCESS: 2}
    counts.on_forgotten(ARRAY)
    assert counts.of(ARRAY) == {}, "an array that is no longer in memory takes no memory"
