"""How long a task may run at most, and when a lease is over by then: what reservations and backfill reckon with.

A time limit is a promise that agents keep, so it counts where there is one. Where there is none, what runs of the same
kind took is believed. Nothing is known of a task with neither, and a service never ends.
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

KILL_GRACE_MS: Final = (
    10_000  # between the two signals at a time limit; what agents use unless they are told otherwise
)
RELEASE_MS: Final = 1_000  # until the GPUs of a process that is gone are free, and the report is here
STOP_MS: Final = KILL_GRACE_MS + RELEASE_MS  # from the order to stop until the GPUs are free
_ALWAYS: Final = Restart.ALWAYS
UNKNOWN: Final = 1 << 60  # a time that nobody knows; larger ones: of so many cards
NEVER: Final = 1 << 61

_PERCENT: Final = 90


def lasts_ms(task: Task) -> int:
    """From its start until its GPUs are free again, at the latest."""
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
    """How long it may run, as far as that does not depend on what is learned of others; else 0."""
    if task.restart is _ALWAYS:
        return NEVER
    if task.timeout_ms:
        return task.timeout_ms + (0 if task.allocation else STOP_MS)
    return UNKNOWN if task.allocation else 0


def expected_ms(run_times: Mapping[str, RunTimes], shape: Shape, detail: bytes) -> int:
    """How long such tasks took, until their GPUs were free again; 0: too few runs are known."""
    runs = run_times.get(kind_of(shape, detail))
    if runs is None or len(runs.recent_ms) < MIN_RUNS:
        return 0
    learned = quantile_ms(runs, _PERCENT, longer_than_ms=-1)
    return 0 if learned is None else learned + RELEASE_MS


class Ends:
    """When leases are over at the latest. Each is worked out once: `forget` a lease that changed, or whose task did."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[LeaseId, int] = {}  # below 0: expected, not certain

    def ends_at(self, state: ClusterState, lease_id: LeaseId, at: int) -> int:
        """UNKNOWN also for a lease that outlives what was expected. NEVER: a service."""
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
        """Until then the ends of these leases stay as they are, if the leases do."""
        until = NEVER
        for lease_id in lease_ids:
            self.ends_at(state, lease_id, at)
            known = self._known.get(lease_id)
            if known is None:
                return at  # it is being stopped
            if known < 0 and -known > at:
                until = min(until, -known)
        return until

    def forget(self, lease_ids: Iterable[LeaseId]) -> None:
        """The lease or its task changed, or is over."""
        for lease_id in lease_ids:
            self._known.pop(lease_id, None)

    def check(self, state: ClusterState) -> bool:
        """For tests: what is kept here is what the leases say."""
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
