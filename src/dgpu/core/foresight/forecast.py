"""Forecasts when waiting tasks start. It runs ahead twice: once with the median of learned run times, once with their
90th percentile. If neither a time limit nor a learned run time shows when GPUs come free, the start is unknown.
"""

from __future__ import annotations

from typing import Final

import msgspec

from dgpu.core.foresight.fork import on_fork
from dgpu.core.foresight.forward import ForwardRun
from dgpu.core.model.ids import TaskId
from dgpu.core.rules.order import queue
from dgpu.core.state import ClusterState

MAX_FORETOLD: Final = 1_000  # forecasts cover only the first tasks in the queue


class Prediction(msgspec.Struct, frozen=True, array_like=True, gc=False):
    task_id: TaskId
    p50_at: int
    p90_at: int


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    at: int
    predictions: tuple[Prediction, ...]
    looked_at: int  # number of tasks examined; a task without a prediction has an unknown start


def forecast(state: ClusterState, at: int, *, most: int = MAX_FORETOLD) -> Forecast:
    """Does not change the state."""
    first = queue(state, limit=most)
    wanted = set(first)
    soon, late = (run_ahead(state, at, wanted, percent) for percent in (50, 90))
    predictions = tuple(
        Prediction(task_id, soon[task_id], max(soon[task_id], late[task_id]))
        for task_id in first
        if task_id in soon and task_id in late
    )
    return Forecast(at=at, predictions=predictions, looked_at=len(first))


def run_ahead(state: ClusterState, at: int, wanted: set[TaskId], percent: int) -> dict[TaskId, int]:
    def look(fork: ClusterState) -> dict[TaskId, int]:
        ahead = ForwardRun(fork, at, percent=percent, run_times=state.run_times)
        ahead.run(wanted)
        return {task_id: start.at for task_id, start in ahead.starts.items()}

    return on_fork(state, look) if wanted else {}
