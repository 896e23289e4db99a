"""Tells why a task waits."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from dgpu.cli.failures import note
from dgpu.client.language import waiting

if TYPE_CHECKING:
    from dgpu.wire.answers import TaskAnswer

_SILENT_SECONDS = 0.5  # a shorter wait needs no note
_REPEAT_SECONDS = 15.0


class WaitNotes:
    """Prints why a task waits: after a short wait, and when the reason changes, at a limited rate."""

    def __init__(self, task_id: str) -> None:
        self._task_id = task_id
        self._due = time.monotonic() + _SILENT_SECONDS
        self._said = ""

    def see(self, task: TaskAnswer) -> None:
        if task.status != "pending" or task.waiting == self._said or time.monotonic() < self._due:
            return
        self._said = task.waiting
        self._due = time.monotonic() + _REPEAT_SECONDS
        note(f"{self._task_id} waits: {waiting(task.blockers, task.waiting)}")
