"""Responses of the history: charts in columns, usage, bars of a timeline, events of a node."""

from __future__ import annotations

from typing import Any

from dgpu.wire.answers import Answer

Curve = list[float | None]  # a value for each of `times`; None: unknown


class GpuPeaks(Answer, frozen=True, kw_only=True):
    utilization_percent: Curve
    memory_used_mb: Curve
    memory_reserved_mb: Curve
    memory_foreign_mb: Curve
    temperature_c: Curve
    power_w: Curve


class GpuCurves(GpuPeaks, frozen=True, kw_only=True):
    """Means of each step; `max` has the maximum."""

    gpu: str
    node: str
    index: int | None = None  # None: the GPU was removed
    model: str | None = None
    memory_total_mb: int | None = None
    max: GpuPeaks


class GpuHistory(GpuCurves, frozen=True, kw_only=True):
    since: str
    until: str
    step_seconds: int
    times: list[int]  # UNIX seconds: the start of each step


class GpusHistory(Answer, frozen=True, kw_only=True):
    since: str
    until: str
    step_seconds: int
    times: list[int]
    gpus: list[GpuCurves]


class NodeHistory(GpuPeaks, frozen=True, kw_only=True):
    """Of the node: mean utilisation, the hottest GPU, sums of the other figures."""

    node: str
    since: str
    until: str
    step_seconds: int
    times: list[int]
    gpus: list[GpuCurves]


class ClusterPeaks(GpuPeaks, frozen=True, kw_only=True):
    memory_total_mb: Curve
    gpus: Curve  # that report
    gpus_busy: Curve
    tasks_waiting: Curve
    tasks_running: Curve


class ClusterHistory(ClusterPeaks, frozen=True, kw_only=True):
    since: str
    until: str
    step_seconds: int
    times: list[int]
    max: ClusterPeaks


class QueueHistory(Answer, frozen=True, kw_only=True):
    since: str
    until: str
    step_seconds: int
    times: list[int]
    tasks_waiting: Curve
    tasks_waiting_max: Curve
    tasks_running: Curve
    tasks_running_max: Curve
    started: list[int]
    wait_mean_seconds: Curve  # of tasks that started in the step
    wait_max_seconds: Curve


class UsageRow(Answer, frozen=True, kw_only=True):
    tenant: str | None = None
    pool: str | None = None
    user: str | None = None  # the label `user`; empty: not set
    gpu_hours: float = 0
    tasks: int = 0  # that ran in the range
    attempts: int = 0
    running: int = 0  # at its end
    started: int = 0  # for the first time
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    wait_mean_seconds: float | None = None  # of started tasks, from submit to placement
    wait_max_seconds: float | None = None
    waiting: int = 0  # now
    run_seconds: float = 0  # from placement to end, within the range
    gpu_percent: int | None = None  # mean utilisation of attempts that ended; None: not measured
    gpu_peak_mb: int | None = None
    task: str | None = None  # the id; by task only
    name: str | None = None
    status: str | None = None


class Usage(Answer, frozen=True, kw_only=True):
    since: str
    until: str
    by: list[str]
    history_since: str | None = None  # None: complete
    history_behind: int = 0  # newest groups of the journal that the history lacks; above 0: not complete
    history_behind_seconds: float = 0.0  # how long it has lacked the oldest of them
    rows: list[UsageRow]
    total: UsageRow
    truncated: bool = False


class Bar(Answer, frozen=True, kw_only=True):
    """One attempt on one node."""

    task_id: str
    name: str
    tenant_id: str
    pool: str
    priority: int
    attempt: int
    node: str
    gpu_ids: list[str]
    start: str
    end: str | None = None  # None: it still runs
    status: str  # running | success | failed | cancelled | requeued
    reason: str = ""


class Timeline(Answer, frozen=True, kw_only=True):
    since: str
    until: str
    now: str
    total: int
    truncated: bool = False
    bars: list[Bar]


class NodeEvent(Answer, frozen=True, kw_only=True):
    at: str
    index: int
    type: str
    gpu: str | None = None
    severity: str = "info"
    facts: dict[str, Any] = {}  # noqa: RUF012 - a Struct copies it


class NodeHealth(Answer, frozen=True, kw_only=True):
    node: str
    since: str
    until: str
    truncated: bool = False
    events: list[NodeEvent]
