"""How long a task may run at most, and when a lease ends at the latest. Reservations and backfill use these times.

Agents enforce a time limit, so it counts if there is one. Otherwise the run times of similar tasks count. A task with
neither has an unknown end, and a service never ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dgpu.core.model.lease import Lease
from dgpu.core.model.run_times import MIN_RUNS, RunTimes, kind_of, quantile_ms
from dgpu.core.model.task import Restart, Shape, Task

KILL_GRACE_MS: Final = 10_000  # between the two signals at a time limit; the default of agents
RELEASE_MS: Final = 1_000  # from the end of a process until its GPUs are free and the report has arrived
STOP_MS: Final = KILL_GRACE_MS + RELEASE_MS  # from the order to stop until the GPUs are free
_ALWAYS: Final = Restart.ALWAYS
UNKNOWN: Final = 1 << 60  # an unknown time; UNKNOWN + n: n times are unknown
NEVER: Final = 1 << 61

_PERCENT: Final = 90


def lasts_ms(task: Task) -> int:
    """The time from its start until its GPUs are free, at most."""
    return certain_ms(task) or task.expected_ms or UNKNOWN


def time_class(task: Task) -> int:
    """`lasts_ms`, rounded up to a quarter of a power of two: tasks of one class are interchangeable."""
    return rounded_up(lasts_ms(task))


def rounded_up(ms: int) -> int:
    if ms >= UNKNOWN:
        return ms
    quarter = 1 << max(0, ms.bit_length() - 3)
    return -(-ms // quarter) * quarter


def certain_ms(task: Task) -> int:
    """The maximum run time, if it does not depend on run times learned from other tasks; else 0."""
    if task.restart is _ALWAYS:
        return NEVER
    if task.timeout_ms:
        return task.timeout_ms + (0 if task.allocation else STOP_MS)
    return UNKNOWN if task.allocation else 0


def expected_ms(run_times: Mapping[str, RunTimes], shape: Shape, detail: bytes) -> int:
    """The time until such tasks released their GPUs; 0: too few runs are known."""
    runs = run_times.get(kind_of(shape, detail))
    if runs is None or len(runs.recent_ms) < MIN_RUNS:
        return 0
    learned = quantile_ms(runs, _PERCENT, longer_than_ms=-1)
    return 0 if learned is None else learned + RELEASE_MS


def end_of(lease: Lease, task: Task) -> int:
    """The latest end of a lease; below 0: expected, not certain."""
    began_at = task.started_at or lease.granted_at
    certain = certain_ms(task)
    if certain:
        return certain if certain >= UNKNOWN else began_at + certain
    return -(began_at + lease.expected_ms) if lease.expected_ms else UNKNOWN
