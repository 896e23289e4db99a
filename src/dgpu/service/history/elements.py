"""Tasks of an array in the history. Their ids are consecutive, so the primary key finds them."""

from __future__ import annotations

from typing import NamedTuple

from dgpu.core.model.array import MAX_TASKS
from dgpu.core.model.ids import TaskId
from dgpu.core.model.task import TaskStatus
from dgpu.service.history.reader import History

_WHERE = f"WHERE id >= ?1 AND id < ?1 + {MAX_TASKS} AND array_id = ?1"


class Member(NamedTuple):
    """A task of an array."""

    task_id: TaskId
    array_index: int
    status: TaskStatus
    exit_code: int | None
    reason: str


def past_members(history: History, array_id: TaskId) -> tuple[int, list[Member]]:
    """The size of the array (0: unknown) and its ended tasks, including those that the core still has."""
    query = f"""
        SELECT id, array_index, status, exit_code, reason, array_count FROM tasks {_WHERE}
        AND status NOT IN ('pending', 'running') ORDER BY id"""  # noqa: S608 - constant text
    rows = history.rows(query, (array_id,))
    members = [Member(TaskId(row[0]), row[1], TaskStatus(row[2]), row[3], row[4]) for row in rows]
    return (rows[0][5] if rows else 0), members


def past_counts(history: History, array_id: TaskId) -> dict[TaskStatus, int]:
    """Ended tasks by status, including those that the core still has."""
    query = f"""
        SELECT status, count(*) FROM tasks {_WHERE} AND status NOT IN ('pending', 'running')
        GROUP BY status"""  # noqa: S608 - the same
    return {TaskStatus(row[0]): row[1] for row in history.rows(query, (array_id,))}


def past_element_id(history: History, array_id: TaskId, index: int) -> TaskId | None:
    query = f"SELECT id FROM tasks {_WHERE} AND array_index = ?2"  # noqa: S608 - the same
    rows = history.rows(query, (array_id, index))
    return TaskId(rows[0][0]) if rows else None
