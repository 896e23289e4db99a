"""How long a task may run at most, and when a lease ends at the latest. Reservations and backfill use these times.

Agents enforce a time limit, so it counts if there is one. Otherwise the run times of similar tasks count. A task with
neither has an unknown end, and a service never ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from dgpu.core.model.ids import LeaseId
from dgpu.core.model.lease import Lease
from dgpu.core.model.run_times import MIN_RUNS, RunTimes, kind_of, quantile_ms
from dgpu.core.model.task import Restart, Shape, Task

if TYPE_CHECKING:
    from dgpu.core.state import ClusterState

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


class Ends:
    """The latest ends of leases. Each is computed once: call `forget` when the lease or its task changes."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[LeaseId, int] = {}  # below 0: expected, not certain

    def ends_at(self, state: ClusterState, lease_id: LeaseId, at: int) -> int:
        """UNKNOWN also for a lease that runs longer than expected. NEVER: a service."""
        known = self._known.get(lease_id)
        if known is None:
            lease = state.leases[lease_id]
            task = state.tasks[lease.task_id]
            if task.cancelling or lease.stopping:
                return at + STOP_MS
            known = self._known[lease_id] = _end_of(lease, task)
        if known >= 0:
            return known
        return -known if -known > at else UNKNOWN

    def valid_until(self, state: ClusterState, lease_ids: Iterable[LeaseId], at: int) -> int:
        """The ends of these leases are valid until this time, unless the leases change."""
        until = NEVER
        for lease_id in lease_ids:
            self.ends_at(state, lease_id, at)
            known = self._known.get(lease_id)
            if known is None:
                return at  # the task is being stopped
            if known < 0 and -known > at:
                until = min(until, -known)
        return until

    def forget(self, lease_ids: Iterable[LeaseId]) -> None:
        """The lease or its task changed or ended."""
        for lease_id in lease_ids:
            self._known.pop(lease_id, None)

    def check(self, state: ClusterState) -> bool:
        """For tests: the cached ends match the leases."""
        return all(
            lease_id in state.leases
            and ends_at == _end_of(state.leases[lease_id], state.tasks[state.leases[lease_id].task_id])
            for lease_id, ends_at in self._known.items()
        )


def _end_of(lease: Lease, task: Task) -> int:
    began_at = task.started_at or lease.granted_at
    certain = certain_ms(task)
    if certain:
        return certain if certain >= UNKNOWN else began_at + certain
    return -(began_at + lease.expected_ms) if lease.expected_ms else UNKNOWN
