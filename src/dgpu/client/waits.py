"""The pause of both clients between two checks whether a task has ended."""

from __future__ import annotations

import time
from collections.abc import Iterator

from dgpu.client.errors import WaitedTooLong
from dgpu.wire.answers import TaskAnswer

_FINAL = frozenset({"success", "failed", "cancelled"})
_FIRST_PAUSE_SECONDS = 0.02
_LONGEST_PAUSE_SECONDS = 0.5


def end_of(timeout_seconds: float | None) -> float | None:
    return None if timeout_seconds is None else time.monotonic() + timeout_seconds


def pauses() -> Iterator[float]:
    pause = _FIRST_PAUSE_SECONDS
    while True:
        yield pause
        pause = min(_LONGEST_PAUSE_SECONDS, pause * 1.5)


def is_over(task: TaskAnswer) -> bool:
    """Whether a task, or all tasks of an array, have ended."""
    return task.status in _FINAL if task.array is None else task.array.is_over


def check_time(task: TaskAnswer, pause: float, until: float | None) -> None:
    """Raises before a pause that would end too late."""
    if until is not None and time.monotonic() + pause > until:
        state = f"is still {task.status}"
        if task.array is not None:
            state = f"has not ended: {task.array.running:,} of its tasks run, {task.array.pending:,} wait"
        raise WaitedTooLong(f"{task.task_id} {state}.")
