"""How long a task may run at most, and when a lease is over by then: what reservations and backfill reckon with.

A time limit is a promise that agents keep, so it counts where there is one. Where there is none, what runs of the same
kind took is believed. Nothing is known of a task with neither, and a service never ends.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from dgpu.core.model.ids import LeaseId
from dgpu.core.model.run_times import MAX_KINDS, MIN_RUNS, RunTimes, kind_of, quantile_ms
from dgpu.core.model.task import Restart, Task

if TYPE_CHECKING:
    from dgpu.core.state import ClusterState

KILL_GRACE_MS: Final = (
    10_000  # between the two signals at a time limit; what agents use unless they are told otherwise
)
RELEASE_MS: Final = 1_000  # until the GPUs of a process that is gone are free, and the report is here
_OVER_MS: Final = KILL_GRACE_MS + RELEASE_MS
_ALWAYS: Final = Restart.ALWAYS  # to look a member up costs as much as a call
UNKNOWN: Final = 1 << 60  # a time that nobody knows; larger ones: of so many cards
NEVER: Final = 1 << 61

_PERCENT: Final = 90


def lasts_ms(state: ClusterState, task: Task, known: dict[bytes, int] | None = None) -> int:
    """From its start until its GPUs are free again, at the latest. `known`: of one shape, by detail."""
    certain = certain_ms(task)
    if certain:
        return certain
    if not state.run_times:
        return UNKNOWN
    if known is not None and task.detail in known:
        return known[task.detail]
    lasts = learned_ms(state.run_times.get(kind_of(state.shapes[task.shape_id], task.detail)))
    if known is not None:
        known[task.detail] = lasts
    return lasts


def certain_ms(task: Task) -> int:
    """How long it may run, as far as that does not depend on what is learned of others; else 0."""
    if task.restart is _ALWAYS:
        return NEVER
    if task.timeout_ms:
        return task.timeout_ms + (0 if task.allocation else _OVER_MS)
    return UNKNOWN if task.allocation else 0


def learned_ms(runs: RunTimes | None) -> int:
    if runs is None or len(runs.recent_ms) < MIN_RUNS:
        return UNKNOWN
    learned = quantile_ms(runs, _PERCENT, longer_than_ms=-1)
    return UNKNOWN if learned is None else learned + RELEASE_MS


class Ends:
    """When leases are over at the latest. What neither time nor other runs can change is worked out once; whoever
    changes a lease or its task says so.
    """

    __slots__ = ("_kinds", "_learned", "known")

    def __init__(self) -> None:
        self.known: dict[LeaseId, int] = {}  # for all to read; what is not in it is asked for
        self._kinds: dict[LeaseId, str] = {}  # to read a command costs more than all else here
        self._learned: dict[str, tuple[RunTimes | None, int]] = {}  # by kind, from which runs

    def ask(self, state: ClusterState, lease_id: LeaseId, at: int) -> int:
        """UNKNOWN or more: nobody knows, or never. One that outlives what was learned is no longer known."""
        lease = state.leases[lease_id]
        task = state.tasks[lease.task_id]
        if task.cancelling or lease.stopping:
            return at + KILL_GRACE_MS + RELEASE_MS
        began_at = task.started_at or lease.granted_at
        if task.timeout_ms or task.allocation or task.restart is Restart.ALWAYS or not state.run_times:
            lasts = lasts_ms(state, task)
        else:
            kind = self._kinds.get(lease_id)
            if kind is None:
                kind = self._kinds[lease_id] = kind_of(state.shapes[task.shape_id], task.detail)
            runs = state.run_times.get(kind)
            known, lasts = self._learned.get(kind, (None, UNKNOWN))
            if runs is not known:
                if len(self._learned) >= MAX_KINDS:
                    self._learned.clear()
                lasts = learned_ms(runs)
                self._learned[kind] = (runs, lasts)
            if lasts < UNKNOWN:
                return began_at + lasts if began_at + lasts > at else UNKNOWN
        over_at = self.known[lease_id] = lasts if lasts >= UNKNOWN else began_at + lasts
        return over_at

    def note(self, lease_id: LeaseId, task: Task, began_at: int) -> None:
        """A lease is new, or its task changed. Mostly there is a limit: so nothing is left to ask."""
        if task.timeout_ms and not task.allocation and task.restart is not _ALWAYS and not task.cancelling:
            self.known[lease_id] = began_at + task.timeout_ms + _OVER_MS
        else:
            self.known.pop(lease_id, None)

    def forget(self, lease_ids: Iterable[LeaseId]) -> None:
        """The lease or its task changed."""
        for lease_id in lease_ids:
            self.known.pop(lease_id, None)

    def start_over(self) -> None:
        """Of a kind of task enough is known now."""
        self.known.clear()

    def release(self, lease_id: LeaseId) -> None:
        """It is over."""
        self.known.pop(lease_id, None)
        self._kinds.pop(lease_id, None)
