"""The progress of an array."""

from __future__ import annotations

import msgspec

MAX_FAILURES = 100


class ElementAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A task of an array that failed or was cancelled."""

    task_id: str
    index: int
    status: str
    exit_code: int | None = None
    reason: str = ""


class ArrayAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers add up to `count`, unless the history no longer has some of the tasks."""

    count: int
    pending: int = 0
    running: int = 0
    success: int = 0
    failed: int = 0
    cancelled: int = 0
    failures: list[ElementAnswer] = []  # by index, the first 100; only in the response for one task

    @property
    def is_over(self) -> bool:
        return not (self.pending or self.running)
