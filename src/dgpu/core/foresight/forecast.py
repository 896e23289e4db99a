"""When will waiting tasks start? Two runs ahead: one believes in the median of learned run times, one in their 90th
percentile. Where neither a time limit nor a learned run time tells when GPUs come free, nobody knows.
"""

from __future__ import annotations

from typing import Final

import msgspec

from dgpu.core.discard import discard
from dgpu.core.foresight.forward import ForwardRun
from dgpu.core.model.ids import TaskId
from dgpu.core.rules.order import queue
from dgpu.core.state import ClusterState

MAX_FORETOLD: Final = 1_000  # the first in the queue; of those behind them nothing is said
_GRANTS_PER_TASK: Final = 4  # a bound on the work: smaller tasks from further behind may start in between


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
    if not wanted:
        return {}
    ahead = ForwardRun(state.fork(), at, percent=percent, run_times=state.run_times)
    ahead.run(wanted, most_grants=_GRANTS_PER_TASK * len(wanted) + MAX_FORETOLD)
    discard(ahead.state)
    return {task_id: start.at for task_id, start in ahead.starts.items()}
