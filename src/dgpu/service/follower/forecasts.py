"""The latest forecast of the follower, kept for requests that ask why a task waits."""

from __future__ import annotations

import time

import msgspec

from dgpu.core.foresight.forecast import Prediction
from dgpu.core.model.ids import TaskId
from dgpu.wire.answers import instant
from dgpu.wire.foresight_answers import ExpectedStart


class Foretold(msgspec.Struct, frozen=True, kw_only=True):
    """A forecast in the form in which the follower sends it."""

    index: int  # of the journal at the time of the forecast
    at: int
    predictions: tuple[Prediction, ...]
    median_error_ms: int | None = None  # over past predictions that were verified


class Forecasts:
    def __init__(self) -> None:
        self.index = 0
        self._at = 0
        self._heard_s = 0.0
        self.median_error_ms: int | None = None
        self._by_task: dict[TaskId, Prediction] = {}

    def take(self, told: Foretold) -> None:
        self.index, self.median_error_ms = told.index, told.median_error_ms
        self._at = told.at
        self._heard_s = time.monotonic()
        self._by_task = {each.task_id: each for each in told.predictions}

    @property
    def count(self) -> int:
        return len(self._by_task)

    def knows(self, created_at: int) -> bool:
        """Whether the latest forecast covers tasks submitted at that time. It may have no prediction for them."""
        return self._at >= created_at

    def expected(self, task_id: TaskId, now: int) -> ExpectedStart | None:
        """None: unknown. A past time becomes now, because the task has not started."""
        known = self._by_task.get(task_id)
        if known is None:
            return None
        error_ms = self.median_error_ms
        return ExpectedStart(
            p50=instant(max(now, known.p50_at)),
            p90=instant(max(now, known.p90_at)),
            median_error_seconds=None if error_ms is None else error_ms / 1_000,
            age_seconds=round(time.monotonic() - self._heard_s, 1),
        )
