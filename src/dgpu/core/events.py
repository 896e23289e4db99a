"""Events: the entries of the journal. Their names and fields are a file format (see wire.upcast).

Fields are only added at the end, with a default. A new field needs a new schema number once the present schema is
released (see wire.records).
"""

from __future__ import annotations

import msgspec

from dgpu.core.model.app import App
from dgpu.core.model.attempt_usage import AttemptUsage
from dgpu.core.model.audit import AuditEntry
from dgpu.core.model.estimates import Estimate
from dgpu.core.model.health import Blame, Health
from dgpu.core.model.ids import NO_LEASE, NO_TASK, GpuId, LeaseId, NodeId, SecretId, TaskId, TenantId, TokenId
from dgpu.core.model.node import Gpu, Node
from dgpu.core.model.quota import Quota
from dgpu.core.model.reservation import Reservation
from dgpu.core.model.secrets import ResealedDetail, ResealedSecret, Secret
from dgpu.core.model.service import Service
from dgpu.core.model.settings import Settings
from dgpu.core.model.task import Outcome, TaskSpec, TaskStatus
from dgpu.core.model.tenant import Tenant
from dgpu.core.model.tokens import Token
from dgpu.core.model.typical import Typical
from dgpu.core.model.wall_span import WallSpan
from dgpu.core.model.worker import LoadedModel


class Event(msgspec.Struct, frozen=True, array_like=True, tag=True, forbid_unknown_fields=True):
    """A reader that does not know a field refuses the event. Dropping the field silently would give another state."""

    at: int


class EpochBegan(Event, frozen=True, array_like=True, tag=True):
    epoch: int
    settings: Settings
    unconfirms: bool = False  # nodes get no tasks until they register; False in journals older than this rule
    cluster_id: str = ""  # created once; empty in journals of schema 1
    nonce: str = ""  # random; empty in journals of schema 1, whose lease ids do not contain the epoch
    next_task_id: TaskId = NO_TASK  # groups that are lost may have used task ids below it
    lost_tail: bool = False  # an operator accepted that groups are lost: earlier epochs prove nothing
    no_pass_before: int = 0  # until then a node may run a task under a lease that is lost


class TasksSubmitted(Event, frozen=True, array_like=True, tag=True):
    first_id: TaskId  # ids are consecutive over all entries
    entries: tuple[tuple[int, TaskSpec], ...]  # timeouts are resolved: never None
    idempotency_key: str = ""
    fingerprint: str = ""
    apps: tuple[App, ...] = ()  # of its function calls, unless they are known


class TaskPlaced(Event, frozen=True, array_like=True, tag=True):
    task_id: TaskId
    lease_id: LeaseId
    attempt: int
    node_id: NodeId
    gpu_ids: tuple[GpuId, ...]
    share_milli: int = 1_000  # of each GPU
    gpu_memory_mb: int = 0  # held on each GPU; 0: all free memory
    expected_ms: int = 0  # see model.lease
    worker: LeaseId = NO_LEASE  # of a function call: the lease of its worker


class TaskStarted(Event, frozen=True, array_like=True, tag=True):
    task_id: TaskId
    lease_id: LeaseId
    started_at: int


class TaskFinished(Event, frozen=True, array_like=True, tag=True):
    """The end of a task. Its lease, if any, is released with it."""

    task_id: TaskId
    lease_id: LeaseId
    status: TaskStatus
    finished_at: int
    exit_code: int | None = None
    reason: str = ""
    error: str = ""
    started_at: int = 0  # of a function call whose start was reported with its end


class TaskRequeued(Event, frozen=True, array_like=True, tag=True):
    """An attempt has ended, and the task waits again. Its lease is released."""

    task_id: TaskId
    lease_id: LeaseId
    eligible_at: int
    counted: bool
    reason: str
    error: str = ""


class TaskCancelRequested(Event, frozen=True, array_like=True, tag=True):
    task_id: TaskId
    lease_id: LeaseId = NO_LEASE


class TasksCancelled(Event, frozen=True, array_like=True, tag=True):
    """Waiting tasks, cancelled together."""

    task_ids: tuple[TaskId, ...]
    reason: str = "cancelled"  # or dependency_failed: a dependency can no longer be met


class GangPlaced(Event, frozen=True, array_like=True, tag=True):
    """All ranks of a task on several nodes, or none."""

    task_id: TaskId
    ranks: tuple[TaskPlaced, ...]  # by rank


class RankEnded(Event, frozen=True, array_like=True, tag=True):
    """One rank of a gang has ended. If it failed, the others are stopped."""

    task_id: TaskId
    lease_id: LeaseId
    outcome: Outcome
    finished_at: int
    exit_code: int = 0
    signal: int = 0
    error: str = ""
    reason: str = ""  # see gang.RankEnd


class TasksHeld(Event, frozen=True, array_like=True, tag=True):
    task_ids: tuple[TaskId, ...]


class TasksReleased(Event, frozen=True, array_like=True, tag=True):
    task_ids: tuple[TaskId, ...]


class PriorityChanged(Event, frozen=True, array_like=True, tag=True):
    """Waiting tasks, each with its previous priority."""

    priority: int
    tasks: tuple[tuple[TaskId, int], ...]


class TasksForgotten(Event, frozen=True, array_like=True, tag=True):
    task_ids: tuple[TaskId, ...]


class KeysForgotten(Event, frozen=True, array_like=True, tag=True):
    """Drops idempotency keys created before this time; with a tenant, only its keys."""

    before: int
    tenant_id: str = ""


class NodeRegistered(Event, frozen=True, array_like=True, tag=True):
    node: Node
    gpus: tuple[Gpu, ...]  # the whole list; a GPU missing from it is gone


class InventoryChanged(Event, frozen=True, array_like=True, tag=True):
    node_id: NodeId
    gpus: tuple[Gpu, ...]


class NodeLost(Event, frozen=True, array_like=True, tag=True):
    node_id: NodeId
    reason: str


class NodeDraining(Event, frozen=True, array_like=True, tag=True):
    node_id: NodeId
    reason: str


class NodeResumed(Event, frozen=True, array_like=True, tag=True):
    node_id: NodeId


class NodeRemoved(Event, frozen=True, array_like=True, tag=True):
    node_id: NodeId


class ObservationChanged(Event, frozen=True, array_like=True, tag=True):
    gpu_id: GpuId
    foreign_mb: int
    fault: str
    fault_cause: str = ""


class TaskStopRequested(Event, frozen=True, array_like=True, tag=True):
    """The scheduler ends a running attempt; `lease.stopping` keeps the reason until the end is reported."""

    task_id: TaskId
    lease_id: LeaseId
    reason: str  # gpu_fault: counted as an infrastructure failure; any other: requeued, not counted
    error: str = ""  # one line for people
    for_task: TaskId = NO_TASK  # for a stop that returns quota: the task that waits for it


class GpuHealthChanged(Event, frozen=True, array_like=True, tag=True):
    """One step along `health.STEPS`."""

    gpu_id: GpuId
    node_id: NodeId
    before: Health
    after: Health
    cause: str  # health.Cause, or the reason of the step: recovered, check, good_runs, time, operator
    evidence: str
    quarantines: int = 0  # within the window, this one included
    checks: int = 0  # on the step to PROBING: the number of the requested check


class GpuBlamed(Event, frozen=True, array_like=True, tag=True):
    """A task failed on the GPU, and the GPU may be the cause."""

    gpu_id: GpuId
    node_id: NodeId
    blame: Blame


class GpuRunSucceeded(Event, frozen=True, array_like=True, tag=True):
    """A task succeeded on a GPU with a past: blames are cleared, a parole advances."""

    gpu_id: GpuId
    run_of: TaskId


class ConditionChanged(Event, frozen=True, array_like=True, tag=True):
    """The condition of a GPU that placement uses besides faults, in steps and bands."""

    gpu_id: GpuId
    over_mb: int = 0
    load_band: int = 0
    heat_band: int = 0
    rest_band: int = 0
    warm: tuple[str, ...] = ()


class TypicalChanged(Event, frozen=True, array_like=True, tag=True):
    """A new table of typical tasks, which `placement: pack` uses."""

    typical: Typical


class EstimateLearned(Event, frozen=True, array_like=True, tag=True):
    key: str
    estimate: Estimate


class DemandChanged(Event, frozen=True, array_like=True, tag=True):
    """A waiting task needs more memory than estimated. Each task gets this at most once."""

    task_id: TaskId
    gpu_memory_mb: int


class QuotaChanged(Event, frozen=True, array_like=True, tag=True):
    quota: Quota


class TenantSet(Event, frozen=True, array_like=True, tag=True):
    """A tenant is new, or its limits changed."""

    tenant: Tenant


class TenantRemoved(Event, frozen=True, array_like=True, tag=True):
    tenant_id: TenantId


class UsageCharged(Event, frozen=True, array_like=True, tag=True):
    """Running tasks were charged to their tenants up to this time."""


class TasksReserved(Event, frozen=True, array_like=True, tag=True):
    """New or changed reservations, and tasks that lost theirs. When a task starts, ends or is held, its reservation is
    dropped without this event.
    """

    made: tuple[Reservation, ...] = ()
    dropped: tuple[TaskId, ...] = ()


class TokenCreated(Event, frozen=True, array_like=True, tag=True):
    token: Token
    dropped: tuple[TokenId, ...] = ()  # revoked tokens, dropped to make room


class TokenRevoked(Event, frozen=True, array_like=True, tag=True):
    token_id: TokenId


class SecretSet(Event, frozen=True, array_like=True, tag=True):
    secret: Secret  # sealed


class SecretDeleted(Event, frozen=True, array_like=True, tag=True):
    secret_id: SecretId


class Resealed(Event, frozen=True, array_like=True, tag=True):
    """The same values under another key."""

    secrets: tuple[ResealedSecret, ...] = ()
    details: tuple[ResealedDetail, ...] = ()


class AlertRecordsKept(Event, frozen=True, array_like=True, tag=True):
    put: dict[str, bytes] = {}
    removed: tuple[str, ...] = ()


class AttemptMeasured(Event, frozen=True, array_like=True, tag=True):
    """What an attempt used. It changes no state: the history shows it."""

    task_id: TaskId
    lease_id: LeaseId
    usage: AttemptUsage


class CallReturned(Event, frozen=True, array_like=True, tag=True):
    """What a function call returned or raised, just before its end. It changes no state: the result store keeps it."""

    task_id: TaskId
    lease_id: LeaseId
    result: bytes = b""
    encoding: str = ""  # json or msgpack; empty: it returned nothing
    ref: str = ""  # sha256 of a large result; `result` is empty then
    size: int = 0  # bytes of the result
    traceback: str = ""  # of the exception that it raised


class WorkerChanged(Event, frozen=True, array_like=True, tag=True):
    """The node of a worker reports its state, or the worker is to take no more calls."""

    task_id: TaskId
    lease_id: LeaseId
    ready: bool
    models: tuple[LoadedModel, ...] = ()
    down: str = ""  # its process gave no sign of life, and is being ended
    retires_for: TaskId = NO_TASK


class CallsFailed(Event, frozen=True, array_like=True, tag=True):
    """Waiting calls, failed together: the workers of their app do not start."""

    task_ids: tuple[TaskId, ...]
    reason: str
    error: str


class Audited(Event, frozen=True, array_like=True, tag=True):
    """What a principal did or tried. It changes no state: the history shows it."""

    entry: AuditEntry


class WallClockRead(Event, frozen=True, array_like=True, tag=True):
    """The wall clock of the span that began at `since`: for a new boot, or after the clock was set."""

    since: int
    span: WallSpan


class ServiceSet(Event, frozen=True, array_like=True, tag=True):
    """A service as it is now: by a user, or after a step of its replicas."""

    service: Service


class ServiceDeleted(Event, frozen=True, array_like=True, tag=True):
    service_id: str
