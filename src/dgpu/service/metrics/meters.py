"""Counters of events that are in no state: plain numbers, changed where the events occur, read by a scrape.

They belong to this process and start at 0 with every start, as Prometheus expects of counters.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable
from itertools import accumulate
from typing import Any

from dgpu.core.events import (
    CallsFailed,
    Event,
    GangPlaced,
    TaskFinished,
    TaskPlaced,
    TaskRequeued,
    TasksCancelled,
    TasksSubmitted,
)
from dgpu.core.model.ids import GpuId, TaskId
from dgpu.core.model.task import PRIORITY_LEVELS, Pool, TaskStatus
from dgpu.core.state import ClusterState
from dgpu.service.machine.outputs import CommittedGroup

_FINE_S = tuple(value * 1e-6 for value in (2, 4, 8, 17, 35, 70, 100, 250, 1_000, 10_000))
_PASS_S = (0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5)
_DISK_S = (0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5, 10.0)
_EVENTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1_024, 4_096)
_WAIT_S = (0.01, 0.05, 0.25, 1, 5, 15, 60, 300, 900, 3_600, 14_400, 43_200, 86_400, 604_800)

_MAX_REMEMBERED = 100_000  # waiting tasks that were requeued
_MAX_REASONS = 32
OTHER = "(other)"  # no tenant and no reason has this name


class Histogram:
    """`counts` has one more entry than `bounds`: the values above all bounds."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    @property
    def count(self) -> int:
        return sum(self.counts)

    def quantile(self, part: float) -> float | None:
        """Interpolates between two bounds; above the last bound, returns that bound. None: no observation."""
        wanted = part * self.count
        if not wanted:
            return None
        below, floor = 0, 0.0
        for bound, reached in zip(self.bounds, accumulate(self.counts), strict=False):
            if reached >= wanted:
                return floor + (bound - floor) * (wanted - below) / (reached - below)
            below, floor = reached, bound
        return self.bounds[-1]


class Meters:
    """Used only by the thread of the loop."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._requeued_at: dict[TaskId, int] = {}  # requeued tasks and the time from which they may be placed
        self.submitted = dict.fromkeys(PRIORITY_LEVELS, 0)
        self.scheduled = dict.fromkeys(PRIORITY_LEVELS, 0)
        self.finished = {status: 0 for status in TaskStatus if status.is_final}
        self.requeued: dict[str, int] = {}  # by reason
        self.refused: dict[str, int] = {}  # commands, by the code of the refusal
        self.gpu_tasks: dict[GpuId, int] = {}
        self.wait = {pool: Histogram(_WAIT_S) for pool in Pool}
        self.command = Histogram(_FINE_S)
        self.decision = Histogram(_FINE_S)
        self.passes = Histogram(_PASS_S)
        self.fsync = Histogram(_DISK_S)
        self.group_events = Histogram(_EVENTS)
        self.journal_bytes = 0
        self.scrapes = 0
        self.scrape_s = 0.0
        self._count: dict[type[Event], Callable[[Any], None]] = {
            TasksSubmitted: self._on_submitted,
            TaskPlaced: self._on_placed,
            GangPlaced: self._on_gang,
            TaskFinished: self._on_finished,
            TasksCancelled: self._on_cancelled,
            CallsFailed: self._on_cancelled,
            TaskRequeued: self._on_requeued,
        }

    # Committed groups

    def on_group(self, group: CommittedGroup) -> None:
        self.group_events.observe(len(group.events))
        for event in group.events:
            count = self._count.get(type(event))
            if count is not None:
                count(event)

    def _on_submitted(self, event: TasksSubmitted) -> None:
        for number, spec in event.entries:
            self.submitted[level_of(spec.shape.priority)] += number

    def _on_placed(self, event: TaskPlaced) -> None:
        self._placed(event.task_id, event.attempt, event.at)
        self._count_gpus(event.gpu_ids)

    def _on_gang(self, event: GangPlaced) -> None:
        self._placed(event.task_id, event.ranks[0].attempt, event.at)
        for rank in event.ranks:
            self._count_gpus(rank.gpu_ids)

    def _placed(self, task_id: TaskId, attempt: int, at: int) -> None:
        task = self._state.tasks.get(task_id)
        if task is None:
            return
        shape = self._state.shapes[task.shape_id]
        self.scheduled[level_of(shape.priority)] += 1
        since = self._requeued_at.pop(task_id, None) if self._requeued_at else None
        if since is None and attempt == 1:
            since = task.created_at
        if since is not None:  # else it was requeued before this process started
            self.wait[shape.pool].observe(max(0, at - since) / 1_000)

    def _count_gpus(self, gpu_ids: tuple[GpuId, ...]) -> None:
        for gpu_id in gpu_ids:
            self.gpu_tasks[gpu_id] = self.gpu_tasks.get(gpu_id, 0) + 1

    def _on_finished(self, event: TaskFinished) -> None:
        self.finished[event.status] += 1
        self._requeued_at.pop(event.task_id, None)

    def _on_cancelled(self, event: TasksCancelled | CallsFailed) -> None:
        status = TaskStatus.FAILED if isinstance(event, CallsFailed) else TaskStatus.CANCELLED
        self.finished[status] += len(event.task_ids)
        if self._requeued_at:
            for task_id in event.task_ids:
                self._requeued_at.pop(task_id, None)

    def _on_requeued(self, event: TaskRequeued) -> None:
        reason = event.reason if event.reason in self.requeued or len(self.requeued) < _MAX_REASONS else OTHER
        self.requeued[reason] = self.requeued.get(reason, 0) + 1
        if len(self._requeued_at) < _MAX_REMEMBERED:
            self._requeued_at[event.task_id] = max(event.at, event.eligible_at)

    # Reports of the runtime and the pipeline

    def now_ns(self) -> int:
        return time.perf_counter_ns()

    def decided(self, commands: int, took_ns: int) -> None:
        self.command.observe(took_ns / commands * 1e-9, commands)

    def passed(self, placed: int, took_ns: int) -> None:
        self.passes.observe(took_ns * 1e-9)
        if placed:
            self.decision.observe(took_ns / placed * 1e-9, placed)

    def on_refused(self, code: str) -> None:
        self.refused[code] = self.refused.get(code, 0) + 1

    def forget_removed(self) -> None:
        """Drops GPUs that no node has any more."""
        if len(self.gpu_tasks) > len(self._state.gpus):
            gpus = self._state.gpus
            self.gpu_tasks = {gpu_id: number for gpu_id, number in self.gpu_tasks.items() if gpu_id in gpus}


def _levels() -> tuple[str, ...]:
    named = sorted(PRIORITY_LEVELS.items(), key=lambda item: item[1])
    return tuple(
        next((name for name, floor in reversed(named) if floor <= priority), named[0][0])
        for priority in range(101)
    )


_LEVEL_OF = _levels()


def level_of(priority: int) -> str:
    """The highest named level that a priority reaches: one label per number would be too many."""
    return _LEVEL_OF[priority]
