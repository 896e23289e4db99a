"""A short summary of the cluster, for programs that watch a workstation or have no Prometheus."""

from __future__ import annotations

from dgpu.wire.answers import Answer


class MonitorGpus(Answer, frozen=True, kw_only=True):
    """Means and sums cover reachable GPUs; null if there are none."""

    total: int
    idle: int
    busy: int
    offline: int
    error: int
    draining: int
    reserved: int
    unconfirmed: int
    utilization_percent: float | None
    memory_total_mb: int
    memory_used_mb: int | None
    temperature_max_c: int | None
    power_w: int | None


class MonitorTasks(Answer, frozen=True, kw_only=True):
    """`pending` and `running` are current; the others count since the start of the scheduler."""

    pending: int
    running: int
    submitted: int
    scheduled: int
    success: int
    failed: int
    cancelled: int
    requeued: int


class MonitorWait(Answer, frozen=True, kw_only=True):
    """For tasks placed since the start of the scheduler. Quantiles come from a histogram."""

    count: int
    mean: float | None
    p50: float | None
    p95: float | None


class MonitorPool(Answer, frozen=True, kw_only=True):
    limit: float
    used: float


class MonitorTenant(Answer, frozen=True, kw_only=True):
    tenant_id: str
    gpus_used: float
    running: int
    waiting: int
    gpu_hours_this_month: float


class MonitorAnswer(Answer, frozen=True, kw_only=True):
    at: str
    role: str
    epoch: int
    gpus: MonitorGpus
    tasks: MonitorTasks
    wait_seconds: MonitorWait
    online: MonitorPool
    batch: MonitorPool
    agents: dict[str, int]
    tenants: list[MonitorTenant]  # at most 50, and one for all others
