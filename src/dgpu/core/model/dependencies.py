"""What a task waits for: the ends of other tasks. Ids only ever name earlier tasks, so there are no circles."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final

import msgspec

from dgpu.core.model.ids import TaskId, task_name

if TYPE_CHECKING:
    from dgpu.core.model.task import TaskStatus

MAX_EDGES: Final = 100_000  # of one submit: tasks times what each of them waits for


class When(enum.StrEnum):
    """The end that is waited for."""

    OK = "ok"  # success
    ANY = "any"  # over, in whatever way
    FAILED = "failed"  # ran and failed; one that was cancelled did not


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

    def is_met_by(self, status: TaskStatus) -> bool:
        """By a task that is over."""
        if self.when is When.ANY:
            return True
        return status.value == ("success" if self.when is When.OK else "failed")

    def in_words(self) -> str:
        words = {When.OK: "success", When.ANY: "end", When.FAILED: "failure"}
        return f"the {words[self.when]} of {task_name(self.task_id)}"


class Awaited(
    msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True, omit_defaults=True, gc=False
):
    """What a waiting task still waits for. Broken: that cannot come any more, and the task is about to be ended."""

    on: tuple[Dependency, ...] = ()  # none of them is over
    broken: Dependency | None = None


class Dependents:
    """Who waits for whom. Derived from `ClusterState.after`, never journaled."""

    __slots__ = ("broken", "by_task")

    def __init__(self) -> None:
        self.by_task: dict[TaskId, dict[TaskId, None]] = {}
        self.broken: dict[TaskId, None] = {}

    def copy(self) -> Dependents:
        twin = Dependents()
        twin.by_task = {task_id: waiting.copy() for task_id, waiting in self.by_task.items()}
        twin.broken = self.broken.copy()
        return twin

    def link(self, task_id: TaskId, awaited: Awaited) -> None:
        for dependency in awaited.on:
            self.by_task.setdefault(dependency.task_id, {})[task_id] = None
        if awaited.broken is not None:
            self.broken[task_id] = None

    def unlink(self, task_id: TaskId, awaited: Awaited) -> None:
        for dependency in awaited.on:
            waiting = self.by_task.get(dependency.task_id)
            if waiting is not None:
                waiting.pop(task_id, None)
                if not waiting:
                    del self.by_task[dependency.task_id]
        self.broken.pop(task_id, None)

    def facts(self) -> tuple[object, ...]:
        """For comparison with one derived from scratch."""
        return ({task_id: sorted(waiting) for task_id, waiting in self.by_task.items()}, sorted(self.broken))
