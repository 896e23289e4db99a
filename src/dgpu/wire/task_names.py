"""Ids in requests. `task-46` names a task or, if it is the first task of an array, the array. `task-46_3` names the
task of this array that has index 3. The prefix is optional.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from dgpu.core.model.array import MAX_INDEX
from dgpu.core.model.ids import TaskId, parse_task_id, task_name

_MAX_DIGITS = 10


class Element(NamedTuple):
    """One task of an array."""

    array_id: TaskId
    array_index: int


Named: TypeAlias = TaskId | Element


def parse_named(text: str) -> Named | None:
    """`task-46`, `46`, `task-46_3`, `46_3`; None for anything else."""
    first, underscore, index = text.partition("_")
    task_id = parse_task_id(first)
    if task_id is None or not underscore:
        return task_id
    if not (index.isascii() and index.isdigit()) or len(index) > _MAX_DIGITS or int(index) > MAX_INDEX:
        return None
    return Element(task_id, int(index))


def name_of(named: Named) -> str:
    return element_name(*named) if isinstance(named, Element) else task_name(named)


def element_name(array_id: TaskId, index: int) -> str:
    return f"{task_name(array_id)}_{index}"
