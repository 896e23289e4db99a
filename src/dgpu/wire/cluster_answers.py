"""Responses about GPUs, nodes, memory estimates, quota and tenants."""

from __future__ import annotations

import msgspec

from dgpu.wire.answers import Answer, Problem


class GpuHealthAnswer(Answer, frozen=True, kw_only=True):
    state: str = "trusted"  # trusted | quarantined | probing | parole | out
    since: str | None = None
    cause: str = ""  # why it left service
    evidence: str = ""
    remark: str = ""  # the reason for this state
    quarantines: int = 0  # in the window
    good_runs: int = 0  # on parole
    needs_person: bool = False


class GpuAnswer(Answer, frozen=True, kw_only=True):
    id: str
    node: str
    index: int
    uuid: str
    model: str
    memory_total_mb: int
    memory_used_mb: int | None = None  # None: no sample yet
    memory_foreign_mb: int = 0  # used by processes outside dgpu
    memory_reserved_mb: int = 0  # promised to tasks; all usable memory if one task has the whole GPU
    memory_usable_mb: int = 0  # may be promised: without the safety margin and foreign memory
    share_free: float = 1  # free part for tasks that share
    utilization_percent: int | None = None
    temperature_c: int | None = None
    power_w: int | None = None
    status: str
    fault: str = ""
    health: GpuHealthAnswer = GpuHealthAnswer()
    tasks: list[str] = msgspec.field(default_factory=list)
    loaded_models: list[str] = msgspec.field(default_factory=list)


class EstimateAnswer(Answer, frozen=True, kw_only=True):
    tenant_id: str
    model: str = ""
    command: str = ""
    base_mb: int
    runs: int = 0  # with a known peak
    ooms: int = 0
    peak_mb: int = 0
    updated_at: str | None = None


class NeedAnswer(Answer, frozen=True, kw_only=True):
    gpu_memory_mb: int
    base_mb: int
    atoms: int
    factor: float
    source: str  # learned | table
    runs: int = 0
    ooms: int = 0


class EstimateList(Answer, frozen=True, kw_only=True):
    total: int
    estimates: list[EstimateAnswer]
    need: NeedAnswer | None = None  # for the requested model, type and atoms


class GpuList(Answer, frozen=True, kw_only=True):
    total: int
    idle: int
    busy: int
    offline: int
    error: int
    draining: int = 0
    reserved: int = 0
    unconfirmed: int = 0
    gpus: list[GpuAnswer]


class NodeAnswer(Answer, frozen=True, kw_only=True):
    id: str
    status: str
    address: str = ""
    agent_version: str = ""
    gpus: int
    gpus_free: int
    gpu_models: list[str] = msgspec.field(default_factory=list)
    cpus: float = 0
    ram_mb: int = 0
    tasks: list[str] = msgspec.field(default_factory=list)
    running: int = 0  # tasks there, of all tenants
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    registered_at: str | None = None
    offline_since: str | None = None
    unconfirmed_since: str | None = None  # start of this scheduler, if the node has not contacted it yet
    draining: bool = False
    drain_reason: str = ""
    enforced: list[str] = msgspec.field(default_factory=list)  # between tasks of different users
    not_enforced: list[str] = msgspec.field(default_factory=list)
    not_isolated: str = ""  # why tasks cannot run as other Unix users
    loaded_models: list[str] = msgspec.field(
        default_factory=list
    )  # of workers; empty for readers of some tenants


class NodeList(Answer, frozen=True, kw_only=True):
    total: int
    nodes: list[NodeAnswer]
    isolation: str = ""  # as in WhoAmI


class PoolQuota(Answer, frozen=True, kw_only=True):
    """GPUs; shares of one count as parts."""

    quota: int
    used: float
    available: float  # free quota, including quota that can be borrowed
    borrowed: float = 0
    waiting: int = 0  # tasks


class TenantUse(Answer, frozen=True, kw_only=True):
    tenant_id: str
    gpus_used: float
    gpu_memory_mb: int = 0
    running: int = 0
    waiting: int = 0
    gpus_kept: float = 0  # kept by its guarantee for waiting tasks
    gpu_hours_this_month: float = 0
    recent_gpu_hours: float = 0  # decayed: the usage in the fair share
    share: float = 0  # its part of all weights


class QuotaAnswer(Answer, frozen=True, kw_only=True):
    total_gpus: int
    online_percent: float
    mode: str
    reclaim: str
    online: PoolQuota
    batch: PoolQuota
    tenants: list[TenantUse] = msgspec.field(default_factory=list)


class QuotaEffect(Answer, frozen=True, kw_only=True):
    """The effect of a change of the quota. Task ids, at most 1,000 of each kind."""

    online: PoolQuota
    batch: PoolQuota
    starts: list[str] = msgspec.field(default_factory=list)
    waits: list[str] = msgspec.field(default_factory=list)
    drains: list[str] = msgspec.field(default_factory=list)  # run beyond the new part of their pool
    stops: list[str] = msgspec.field(default_factory=list)
    rejected: Problem | None = None


class TenantAnswer(Answer, frozen=True, kw_only=True):
    id: str
    max_gpus: int | None = None
    guaranteed_gpus: int = 0
    weight: float = 1
    max_running: int | None = None
    max_waiting: int | None = None
    max_gpu_memory_mb: int | None = None
    max_priority: int | None = None
    pools: list[str] = msgspec.field(default_factory=list)
    gpu_hours_per_month: float | None = None
    use: TenantUse


class TenantList(Answer, frozen=True, kw_only=True):
    total: int
    tenants: list[TenantAnswer]
