"""Refusals are values: one type each, with its facts. Only `wire.problem` knows their meaning in HTTP."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from dgpu.core.model.dependencies import ANY_INDEX, Dependency
from dgpu.core.model.ids import GpuId, LeaseId, NodeId, TaskId, TenantId, TokenId


class Rejection(msgspec.Struct, frozen=True, kw_only=True):
    code: ClassVar[str]


class AlreadySubmitted(Rejection, frozen=True, kw_only=True):
    """The same key with the same body: the first answer applies. This is no error and changes nothing."""

    code: ClassVar[str] = "already_submitted"
    first_id: TaskId
    count: int
    created_at: int


class KeyReused(Rejection, frozen=True, kw_only=True):
    """An idempotency key was used again with another body."""

    code: ClassVar[str] = "idempotency_key_reused"
    key: str


class NeverFits(Rejection, frozen=True, kw_only=True):
    """No registered node could run the task even if empty; waiting cannot help."""

    code: ClassVar[str] = "never_fits"
    entry: int  # of the batch
    lacks: str  # gpus | gpu_model | gpu_memory_mb | cpus | ram_mb
    requested: int | str
    largest: int | str  # the offer of the best node


class TimeoutTooLong(Rejection, frozen=True, kw_only=True):
    code: ClassVar[str] = "timeout_too_long"
    entry: int
    timeout_ms: int
    max_timeout_ms: int


class QueueFull(Rejection, frozen=True, kw_only=True):
    """Too many tasks wait already; the bound limits memory."""

    code: ClassVar[str] = "queue_full"
    waiting: int
    submitted: int
    limit: int


class TooManyApps(Rejection, frozen=True, kw_only=True):
    """Function calls of too many different apps wait or run; the bound limits memory."""

    code: ClassVar[str] = "too_many_apps"
    apps: int
    limit: int


class UnknownTask(Rejection, frozen=True, kw_only=True):
    code: ClassVar[str] = "unknown_task"
    task_id: TaskId


class TaskEnded(Rejection, frozen=True, kw_only=True):
    """A cancel of a task that has ended."""

    code: ClassVar[str] = "task_ended"
    task_id: TaskId
    status: str


class TaskNotWaiting(Rejection, frozen=True, kw_only=True):
    """A hold, release or change of priority of a task that runs or has ended."""

    code: ClassVar[str] = "task_not_waiting"
    task_id: TaskId
    status: str


class UnknownArray(Rejection, frozen=True, kw_only=True):
    code: ClassVar[str] = "unknown_array"
    array_id: TaskId


class UnknownDependency(Rejection, frozen=True, kw_only=True):
    """`after` names a task that was never submitted, or one so old that its end is unknown."""

    code: ClassVar[str] = "unknown_dependency"
    entry: int
    task_id: TaskId
    forgotten: bool = False
    index: int = ANY_INDEX  # in the array that begins with this task


class DependencyForgotten(Rejection, frozen=True, kw_only=True):
    """`after` names tasks that ended and are out of memory. The service looks up how they ended, and submits again."""

    code: ClassVar[str] = "dependency_forgotten"
    entry: int
    on: tuple[Dependency, ...]


class DependencyNeverMet(Rejection, frozen=True, kw_only=True):
    """The dependency can never be met: the other task ended in another way."""

    code: ClassVar[str] = "dependency_never_met"
    entry: int
    task_id: TaskId
    when: str
    status: str


class TooManyDependencies(Rejection, frozen=True, kw_only=True):
    """Tasks times dependencies of each: a bound on memory."""

    code: ClassVar[str] = "too_many_dependencies"
    entry: int
    number: int
    limit: int


class UnknownNode(Rejection, frozen=True, kw_only=True):
    code: ClassVar[str] = "unknown_node"
    node_id: NodeId


class UnknownGpu(Rejection, frozen=True, kw_only=True):
    code: ClassVar[str] = "unknown_gpu"
    gpu_id: GpuId


class GpuInService(Rejection, frozen=True, kw_only=True):
    """Only a GPU that is out of service can be recovered."""

    code: ClassVar[str] = "gpu_in_service"
    gpu_id: GpuId
    state: str


class StaleCheck(Rejection, frozen=True, kw_only=True):
    """An answer to a check that is no longer requested."""

    code: ClassVar[str] = "stale_check"
    gpu_id: GpuId
    number: int


class NodeBusy(Rejection, frozen=True, kw_only=True):
    """The node still holds leases, or is connected."""

    code: ClassVar[str] = "node_busy"
    node_id: NodeId
    leases: int
    status: str


class NodeNotOffline(Rejection, frozen=True, kw_only=True):
    """Only an unreachable node can be released."""

    code: ClassVar[str] = "node_not_offline"
    node_id: NodeId


class GpuClaimed(Rejection, frozen=True, kw_only=True):
    """Two nodes report a GPU with the same UUID."""

    code: ClassVar[str] = "gpu_claimed"
    gpu_id: GpuId
    node_id: NodeId
    holder: NodeId


class StaleLease(Rejection, frozen=True, kw_only=True):
    """A report on a lease that was released: its task may be leased elsewhere by now."""

    code: ClassVar[str] = "stale_lease"
    lease_id: LeaseId


class StorageFull(Rejection, frozen=True, kw_only=True):
    """The journal has no room for new tasks. The service returns this before any decision."""

    code: ClassVar[str] = "storage_full"


class JournalUnavailable(Rejection, frozen=True, kw_only=True):
    """The journal's files are gone, or no follower reads it. The service returns this before any decision."""

    code: ClassVar[str] = "journal_unavailable"
    reason: str


class HistoryBehind(Rejection, frozen=True, kw_only=True):
    """Finished tasks stay in memory until the history holds them. The bound limits memory while the history does not
    advance.
    """

    code: ClassVar[str] = "history_behind"
    finished: int
    limit: int


class TooManyKeys(Rejection, frozen=True, kw_only=True):
    """Too many idempotency keys in the last hour: a bound on memory. The submit is accepted without a key, or later."""

    code: ClassVar[str] = "too_many_keys"
    tenant_id: TenantId  # empty: the bound for all tenants together
    known: int
    limit: int


class TooBusy(Rejection, frozen=True, kw_only=True):
    """Too many commands wait for a decision. The service returns this; a later retry helps."""

    code: ClassVar[str] = "too_busy"
    queued: int


class ExceedsQuota(Rejection, frozen=True, kw_only=True):
    """The task asks for more GPUs than its tenant or pool may ever hold; waiting cannot help."""

    code: ClassVar[str] = "exceeds_quota"
    entry: int
    holder: str  # tenant NAME, online pool, batch pool
    milli_requested: int
    gpus_quota: int


class ExceedsMemory(Rejection, frozen=True, kw_only=True):
    """The task asks for more GPU memory than its tenant may ever hold."""

    code: ClassVar[str] = "exceeds_memory_quota"
    entry: int
    tenant_id: TenantId
    requested_mb: int
    quota_mb: int


class MemoryNotStated(Rejection, frozen=True, kw_only=True):
    """The GPU memory of the tenant is limited, and the task does not state its need."""

    code: ClassVar[str] = "memory_not_stated"
    entry: int
    tenant_id: TenantId
    quota_mb: int


class PoolNotAllowed(Rejection, frozen=True, kw_only=True):
    code: ClassVar[str] = "pool_not_allowed"
    entry: int
    tenant_id: TenantId
    pool: str
    pools: str


class PriorityTooHigh(Rejection, frozen=True, kw_only=True):
    code: ClassVar[str] = "priority_too_high"
    entry: int
    tenant_id: TenantId
    priority: int
    max_priority: int


class TenantQueueFull(Rejection, frozen=True, kw_only=True):
    """The tenant has its maximum of waiting tasks."""

    code: ClassVar[str] = "tenant_queue_full"
    tenant_id: TenantId
    waiting: int
    submitted: int
    limit: int


class UnknownTenant(Rejection, frozen=True, kw_only=True):
    code: ClassVar[str] = "unknown_tenant"
    tenant_id: TenantId
    entry: int = -1  # of a submit


class TenantExists(Rejection, frozen=True, kw_only=True):
    code: ClassVar[str] = "tenant_exists"
    tenant_id: TenantId


class TenantBusy(Rejection, frozen=True, kw_only=True):
    """The tenant still has tasks."""

    code: ClassVar[str] = "tenant_busy"
    tenant_id: TenantId
    waiting: int
    running: int


class TooManyTenants(Rejection, frozen=True, kw_only=True):
    code: ClassVar[str] = "too_many_tenants"
    limit: int


class QuotaInUse(Rejection, frozen=True, kw_only=True):
    """Running tasks hold more than the new quota; no task is stopped for it."""

    code: ClassVar[str] = "quota_in_use"
    pool: str
    used_milli: int
    quota: int


class UnknownToken(Rejection, frozen=True, kw_only=True):
    code: ClassVar[str] = "unknown_token"
    token_id: TokenId


class TokenExists(Rejection, frozen=True, kw_only=True):
    """Two random ids were equal. The service tries another id."""

    code: ClassVar[str] = "token_exists"
    token_id: TokenId


class TooManyTokens(Rejection, frozen=True, kw_only=True):
    """None of the stored tokens is revoked."""

    code: ClassVar[str] = "too_many_tokens"
    limit: int


class UnknownSecret(Rejection, frozen=True, kw_only=True):
    code: ClassVar[str] = "unknown_secret"
    tenant_id: TenantId
    name: str


class SecretNotSet(Rejection, frozen=True, kw_only=True):
    """A submit uses a secret that its tenant does not have."""

    code: ClassVar[str] = "secret_not_set"
    entry: int
    tenant_id: TenantId
    name: str


class TooManySecrets(Rejection, frozen=True, kw_only=True):
    code: ClassVar[str] = "too_many_secrets"
    limit: int
    tenant_id: TenantId = TenantId("")  # empty: of all tenants together


class TooManyAlertRecords(Rejection, frozen=True, kw_only=True):
    """Of silences, alerts and unsent messages together, or one that is too large."""

    code: ClassVar[str] = "too_many_alert_records"
    limit: int


class UnknownService(Rejection, frozen=True, kw_only=True):
    code: ClassVar[str] = "unknown_service"
    tenant_id: TenantId
    name: str


class NoEarlierGeneration(Rejection, frozen=True, kw_only=True):
    """A service that was never changed cannot be rolled back."""

    code: ClassVar[str] = "no_earlier_generation"
    tenant_id: TenantId
    name: str


class TooManyServices(Rejection, frozen=True, kw_only=True):
    code: ClassVar[str] = "too_many_services"
    limit: int
