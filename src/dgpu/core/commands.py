"""Commands of the core. The service sets `at`: counted milliseconds that never go back (wall_span)."""

from __future__ import annotations

import msgspec

from dgpu.core.model.app import App
from dgpu.core.model.attempt_usage import AttemptUsage
from dgpu.core.model.audit import AuditEntry
from dgpu.core.model.dependencies import Dependency
from dgpu.core.model.ids import NO_LEASE, NO_TASK, GpuId, LeaseId, NodeId, TaskId, TenantId, TokenId
from dgpu.core.model.node import Gpu
from dgpu.core.model.quota import QuotaMode, Reclaim
from dgpu.core.model.secrets import ResealedDetail, ResealedSecret, Secret
from dgpu.core.model.service import ServiceSpec
from dgpu.core.model.settings import Settings
from dgpu.core.model.task import Outcome, Pool, TaskSpec, TaskStatus
from dgpu.core.model.tenant import Tenant
from dgpu.core.model.tokens import Token
from dgpu.core.model.wall_span import WallSpan
from dgpu.core.model.worker import LoadedModel
from dgpu.core.rules.replicas import Reading


class Command(msgspec.Struct, frozen=True, kw_only=True):
    at: int = 0
    audit: AuditEntry | None = None  # of the request; becomes an event of the command, if that is accepted


class BeginEpoch(Command, frozen=True, kw_only=True):
    """A scheduler took over: the first command after every start."""

    settings: Settings
    nonce: str = ""  # random, created by the service
    cluster_id: str = ""  # for a journal without one
    above_epoch: int = 0  # highest epoch known outside the journal
    above_task: TaskId = NO_TASK  # the same for task ids
    lost_tail: bool = False  # groups are lost, and an operator accepted the loss
    lost_wait_ms: int = 0  # how long a run under a lost lease may be awake after the loss
    wall: WallSpan | None = None  # shows whether `at` was counted without a gap since the epoch before


class SubmitTasks(Command, frozen=True, kw_only=True):
    """All or nothing. Each entry is a number of equal tasks."""

    entries: tuple[tuple[int, TaskSpec], ...]
    idempotency_key: str = ""
    fingerprint: str = ""  # of the request's body: the same key with another body is refused
    met: tuple[Dependency, ...] = ()  # on tasks out of memory: the service found that they ended as required
    apps: tuple[App, ...] = ()  # of its function calls


class CancelTasks(Command, frozen=True, kw_only=True):
    """By ids, or by filters when `task_ids` is None. Unknown ids are refused, ended tasks stay as they are."""

    task_ids: tuple[TaskId, ...] | None = None
    status: TaskStatus | None = None
    tenant_id: TenantId | None = None
    pool: Pool | None = None
    priority: int | None = None
    array_id: TaskId | None = None


class HoldTasks(Command, frozen=True, kw_only=True):
    """Waiting tasks keep their place in the queue and are not placed. By ids, or all waiting tasks of an array."""

    task_ids: tuple[TaskId, ...] = ()
    array_id: TaskId | None = None


class ReleaseTasks(Command, frozen=True, kw_only=True):
    task_ids: tuple[TaskId, ...] = ()
    array_id: TaskId | None = None


class ChangePriority(Command, frozen=True, kw_only=True):
    """Changes the priority of waiting tasks. The pool stays."""

    priority: int
    task_ids: tuple[TaskId, ...] = ()
    array_id: TaskId | None = None


class HeldLease(msgspec.Struct, frozen=True, kw_only=True):
    lease_id: LeaseId
    task_id: TaskId
    running: bool  # False: starting, or ended and not yet reported
    attempt: int = 0  # 0: from an agent of an earlier version, which does not report it
    nonce: str = ""  # of the epoch that granted it; empty: started by an earlier version
    cluster_id: str = ""
    worker_lease_id: LeaseId = NO_LEASE  # of a function call


class RegisterNode(Command, frozen=True, kw_only=True):
    node_id: NodeId
    boot_id: str
    address: str = ""
    agent_version: str = ""
    cpus_milli: int
    ram_mb: int
    labels: dict[str, str] = {}
    gpus: tuple[Gpu, ...]
    held: tuple[HeldLease, ...] = ()
    work_dir: str = ""
    enforced: tuple[str, ...] = ()
    not_isolated: str = ""


class ChangeInventory(Command, frozen=True, kw_only=True):
    """The node's list of GPUs changed while it is connected."""

    node_id: NodeId
    gpus: tuple[Gpu, ...]


class ObserveGpu(Command, frozen=True, kw_only=True):
    """Sent only when the step of foreign memory or the fault changed."""

    gpu_id: GpuId
    foreign_mb: int
    fault: str = ""
    fault_cause: str = ""


class ReportCheck(Command, frozen=True, kw_only=True):
    """An agent checked a GPU as requested. `number` is the number of the request."""

    gpu_id: GpuId
    number: int
    ok: bool
    evidence: str


class RecoverGpu(Command, frozen=True, kw_only=True):
    """An operator repaired a GPU and requests another check. Earlier quarantines no longer count."""

    gpu_id: GpuId
    reason: str = ""


class ObserveCondition(Command, frozen=True, kw_only=True):
    """Sent only when a step or band changed, and not for each small change."""

    gpu_id: GpuId
    over_mb: int = 0
    load_band: int = 0
    heat_band: int = 0
    rest_band: int = 0
    warm: tuple[str, ...] = ()


class LoseNode(Command, frozen=True, kw_only=True):
    """No heartbeat for too long. Its GPUs are unavailable; its tasks keep their leases until their end is certain."""

    node_id: NodeId
    reason: str


class ReleaseNode(Command, frozen=True, kw_only=True):
    """No task can run on a lost node any more: leases expired, the node is fenced, or an operator confirms it."""

    node_id: NodeId
    reason: str


class DrainNode(Command, frozen=True, kw_only=True):
    node_id: NodeId
    reason: str = ""
    keeps_reason: bool = False  # the reason of an earlier drain stays


class ResumeNode(Command, frozen=True, kw_only=True):
    node_id: NodeId
    drained_for: str | None = None  # only if this is still the reason


class RemoveNode(Command, frozen=True, kw_only=True):
    """Forget a node that is offline and holds no lease."""

    node_id: NodeId


class ReportStarted(Command, frozen=True, kw_only=True):
    lease_id: LeaseId
    ago_ms: int = 0


class CallResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a function call returned or raised."""

    result: bytes = b""
    encoding: str = ""
    ref: str = ""
    size: int = 0
    traceback: str = ""
    ran_ms: int = 0


class WorkerReport(msgspec.Struct, frozen=True, kw_only=True):
    lease_id: LeaseId
    ready: bool
    models: tuple[LoadedModel, ...] = ()
    down: str = ""


class ReportWorkers(Command, frozen=True, kw_only=True):
    """A node reports changes of its workers."""

    workers: tuple[WorkerReport, ...]


class ReportFinished(Command, frozen=True, kw_only=True):
    lease_id: LeaseId
    outcome: Outcome
    exit_code: int = 0
    signal: int = 0
    error: str = ""
    ago_ms: int = 0
    stuck_gpus: tuple[GpuId, ...] = ()
    peak_memory_mb: int = 0  # on the GPU where it was highest; 0: unknown
    usage: AttemptUsage | None = None
    returned: CallResult | None = None  # of a function call


class SetQuota(Command, frozen=True, kw_only=True):
    """Fields that are None stay as they are."""

    online_ppm: int | None = None
    mode: QuotaMode | None = None
    reclaim: Reclaim | None = None


class SetTenant(Command, frozen=True, kw_only=True):
    """Sets all limits of a tenant. An omitted limit is removed."""

    tenant: Tenant
    is_new: bool = False  # refused if the tenant exists


class RemoveTenant(Command, frozen=True, kw_only=True):
    tenant_id: TenantId


class CreateToken(Command, frozen=True, kw_only=True):
    """The service made the secret and keeps only its keyed hash. `token.created_at` is set from `at`."""

    token: Token


class RevokeToken(Command, frozen=True, kw_only=True):
    """A revoked token stays as it is."""

    token_id: TokenId


class SetSecret(Command, frozen=True, kw_only=True):
    """The service sealed the value. `version` and `set_at` are set here."""

    secret: Secret


class DeleteSecret(Command, frozen=True, kw_only=True):
    """Tasks that use it fail at their next start."""

    tenant_id: TenantId
    name: str


class Reseal(Command, frozen=True, kw_only=True):
    """The same values under another key."""

    secrets: tuple[ResealedSecret, ...] = ()
    details: tuple[ResealedDetail, ...] = ()


class KeepAlertRecords(Command, frozen=True, kw_only=True):
    """The alert watch stores and removes records, all or nothing. Their content is its own."""

    put: dict[str, bytes] = {}
    removed: tuple[str, ...] = ()


class RecordAudit(Command, frozen=True, kw_only=True):
    """Attempts that became no other command: refusals, and changes outside the core."""

    entries: tuple[AuditEntry, ...]


class RunPass(Command, frozen=True, kw_only=True):
    """Places waiting tasks, at most `limit`. Only lines that a change may have let in are tried, unless `full`."""

    limit: int = 1_000
    full: bool = False


class Tick(Command, frozen=True, kw_only=True):
    """Time passed: allocations end, finished tasks and old idempotency keys are forgotten, in bounded portions."""

    history_at: int = 0  # the history holds all tasks that ended up to this time; later ones are kept


class ReadWallClock(Command, frozen=True, kw_only=True):
    """How the wall clock differs from `at`: at the start of a scheduler, and when the wall clock was set."""

    span: WallSpan


class SetService(Command, frozen=True, kw_only=True):
    """Creates or changes a service. With `rolls_back`, the specification before the last change returns; with
    `restarts`, the known one is rolled out again.
    """

    tenant_id: TenantId
    name: str
    spec: ServiceSpec
    set_by: str = ""
    rolls_back: bool = False
    restarts: bool = False


class ScaleService(Command, frozen=True, kw_only=True):
    """Another number of replicas. None: as it is, or as far as the other limit allows."""

    tenant_id: TenantId
    name: str
    min_replicas: int | None = None
    max_replicas: int | None = None
    set_by: str = ""


class DeleteService(Command, frozen=True, kw_only=True):
    """Its replicas are cancelled."""

    tenant_id: TenantId
    name: str


class StepServices(Command, frozen=True, kw_only=True):
    """Checks of replicas, and requests in progress of each service."""

    readings: dict[TaskId, Reading] = {}
    load: dict[str, int] = {}
