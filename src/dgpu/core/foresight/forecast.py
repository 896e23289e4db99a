"""When will waiting tasks start? Two runs ahead: one believes in the median of learned run times, one in their 90th
percentile. Where neither a time limit nor a learned run time tells when GPUs come free, nobody knows.
"""

from __future__ import annotations

from typing import Final

import msgspec

from dgpu.core.foresight.fork import on_fork
from dgpu.core.foresight.forward import ForwardRun
from dgpu.core.model.ids import TaskId
from dgpu.core.rules.order import queue
from dgpu.core.state import ClusterState

MAX_FORETOLD: Final = 1_000  # the first in the queue; of those behind them nothing is said


class Prediction(msgspec.Struct, frozen=True, array_like=True, gc=False):
    task_id: TaskId
    p50_at: int
    p90_at: int


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    at: int
    predictions: tuple[Prediction, ...]
    looked_at: int  # so many tasks; those without a prediction have an unknown start


def forecast(state: ClusterState, at: int, *, most: int = MAX_FORETOLD) -> Forecast:
    """The state is left as it is."""
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
