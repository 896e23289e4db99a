"""How long a task may run at most, and when a lease is over by then: what reservations and backfill reckon with.

A time limit is a promise that agents keep, so it counts where there is one. Where there is none, what runs of the same
kind took is believed. Nothing is known of a task with neither, and a service never ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dgpu.core.ids import LeaseId
from dgpu.core.run_times import kind_of, quantile_ms
from dgpu.core.task import Restart, Task

if TYPE_CHECKING:
    from dgpu.core.state import ClusterState

KILL_GRACE_MS = (
    10_000  # between the two signals at a time limit; what agents use unless they are told otherwise
)
RELEASE_MS = 1_000  # until the GPUs of a process that is gone are free, and the report is here
UNKNOWN = 1 << 60  # a time that nobody knows; larger ones: of so many cards
NEVER = 1 << 61

_PERCENT = 90
_FEWEST_RUNS = 3  # fewer say too little


def lasts_ms(state: ClusterState, task: Task, known: dict[bytes, int] | None = None) -> int:
    """From its start until its GPUs are free again, at the latest. `known`: of one shape, by detail."""
    if task.restart is Restart.ALWAYS:
        return NEVER
    if task.timeout_ms:
        return task.timeout_ms + (0 if task.allocation else KILL_GRACE_MS + RELEASE_MS)
    if task.allocation or not state.run_times:
        return UNKNOWN
    if known is not None and task.detail in known:
        return known[task.detail]
    runs = state.run_times.get(kind_of(state.shapes[task.shape_id], task.detail))
    learned = quantile_ms(runs, _PERCENT, longer_than_ms=-1)
    enough = runs is not None and len(runs.recent_ms) >= _FEWEST_RUNS
    lasts = learned + RELEASE_MS if enough and learned is not None else UNKNOWN
    if known is not None:
        known[task.detail] = lasts
    return lasts


def ends_at(state: ClusterState, lease_id: LeaseId, at: int) -> int:
    """UNKNOWN or more: nobody knows, or never. One that outlives what was learned is no longer known."""
    lease = state.leases[lease_id]
    task = state.tasks[lease.task_id]
    if task.cancelling or lease.stopping:
        return at + KILL_GRACE_MS + RELEASE_MS
    if (
        task.timeout_ms and not task.allocation and task.restart is not Restart.ALWAYS
    ):  # mostly, and asked often
        return (task.started_at or lease.granted_at) + task.timeout_ms + KILL_GRACE_MS + RELEASE_MS
    lasts = lasts_ms(state, task)
    if lasts >= UNKNOWN:
        return lasts
    over_at = (task.started_at or lease.granted_at) + lasts
    return over_at if over_at > at or task.timeout_ms else UNKNOWN
