"""Dependencies: the ends of other tasks that a task waits for. They name only earlier tasks, so there are no cycles."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import msgspec

from dgpu.core.model.ids import TaskId, task_name

if TYPE_CHECKING:
    from dgpu.core.model.task import TaskStatus

ANY_INDEX: Final = -1
MAX_EDGES: Final = 100_000  # of one submit: tasks times dependencies of each


def of_entry(entry: int) -> TaskId:
    """Stands for all tasks of an earlier entry of the same submit: they have no ids yet. Never journaled."""
    return TaskId(-1 - entry)


class When(enum.StrEnum):
    """The outcome that a task waits for."""

    OK = "ok"  # success
    ANY = "any"  # any end
    FAILED = "failed"  # ran and failed; a cancelled task does not count


class Dependency(
    msgspec.Struct,
    forbid_unknown_fields=True,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    gc=False,
    order=True,
):
    task_id: TaskId
    when: When = When.OK
    index: int = ANY_INDEX  # in a submit: only the task of an array with this index, and not the whole array

    def is_met_by(self, status: TaskStatus) -> bool:
        """Whether the status of an ended task meets this dependency."""
        if self.when is When.ANY:
            return True
        return status.value == ("success" if self.when is When.OK else "failed")

    def in_words(self) -> str:
        words = {When.OK: "success", When.ANY: "end", When.FAILED: "failure"}
        return f"the {words[self.when]} of {task_name(self.task_id)}"


class Awaited(
    msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True, omit_defaults=True, gc=False
):
    """The dependencies that a waiting task still has. Broken: one can no longer be met, and the task is about to be
    ended.
    """

    on: tuple[Dependency, ...] = ()  # none of these tasks has ended
    broken: Dependency | None = None


class Dependents:
    """The dependents of each task. Derived from `ClusterState.after`, never journaled."""

    __slots__ = ("_by_task", "broken")

    def __init__(self) -> None:
        self._by_task: dict[TaskId, dict[TaskId, None]] = {}
        self.broken: dict[TaskId, None] = {}

    def copy(self) -> Dependents:
        twin = Dependents()
        twin._by_task = {task_id: waiting.copy() for task_id, waiting in self._by_task.items()}
        twin.broken = self.broken.copy()
        return twin

    def link(self, task_id: TaskId, awaited: Awaited) -> None:
        for dependency in awaited.on:
            self._by_task.setdefault(dependency.task_id, {})[task_id] = None
        if awaited.broken is not None:
            self.broken[task_id] = None

    def unlink(self, task_id: TaskId, awaited: Awaited) -> None:
        for dependency in awaited.on:
            waiting = self._by_task.get(dependency.task_id)
            if waiting is not None:
                waiting.pop(task_id, None)
                if not waiting:
                    del self._by_task[dependency.task_id]
        self.broken.pop(task_id, None)

    def take(self, ended: TaskId) -> Iterable[TaskId]:
        """The tasks that wait for the one that ended. They are unlinked from it."""
        return self._by_task.pop(ended, ())

    def facts(self) -> tuple[object, ...]:
        """For comparison with one derived from scratch."""
        return ({task_id: sorted(waiting) for task_id, waiting in self._by_task.items()}, sorted(self.broken))
