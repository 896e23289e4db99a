"""Changes of the quota and of tenants, the checks of a submit against them, and the charge of every minute."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from dgpu.core.commands import RemoveTenant, SetQuota, SetTenant
from dgpu.core.decision import Decision
from dgpu.core.events import Event, QuotaChanged, TenantRemoved, TenantSet, UsageCharged
from dgpu.core.index.limits import schedulable
from dgpu.core.index.line import claim_of
from dgpu.core.index.room import STATUSES
from dgpu.core.model.ids import TenantId
from dgpu.core.model.node import GpuStatus
from dgpu.core.model.quota import QuotaMode, split
from dgpu.core.model.task import WHOLE_MILLI, Pool, Shape, TaskSpec
from dgpu.core.model.tenant import MAX_TENANTS, Tenant
from dgpu.core.model.usage import STEP_MS
from dgpu.core.rejections import (
    ExceedsMemory,
    ExceedsQuota,
    MemoryNotStated,
    PoolNotAllowed,
    PriorityTooHigh,
    QuotaInUse,
    Rejection,
    TenantBusy,
    TenantExists,
    TenantQueueFull,
    TooManyTenants,
    UnknownTenant,
)
from dgpu.core.rules.admission import lines_of, used_milli
from dgpu.core.state import ClusterState

_RESERVED: Final = STATUSES.index(GpuStatus.RESERVED)


def decide_set_quota(state: ClusterState, command: SetQuota) -> Decision:
    """Refused if running tasks hold more than a strict quota would allow: no task is stopped for a new quota."""
    given = {
        "online_ppm": command.online_ppm,
        "mode": command.mode,
        "reclaim": command.reclaim,
    }
    quota = replace(state.quota, **{name: value for name, value in given.items() if value is not None})
    if quota == state.quota:
        return ()
    if quota.mode is QuotaMode.STRICT:
        parts = split(schedulable(state), quota.online_ppm)
        for pool in Pool:
            used = used_milli(state, pool)
            if used > parts.milli(pool):
                return QuotaInUse(pool=pool.value, used_milli=used, quota=parts.milli(pool) // WHOLE_MILLI)
    return (QuotaChanged(at=command.at, quota=quota),)


def decide_set_tenant(state: ClusterState, command: SetTenant) -> Decision:
    tenant = command.tenant
    known = state.tenants.get(tenant.id)
    if known is not None and command.is_new:
        return TenantExists(tenant_id=tenant.id)
    if known is None and len(state.tenants) >= MAX_TENANTS:
        return TooManyTenants(limit=MAX_TENANTS)
    return () if known == tenant else (TenantSet(at=command.at, tenant=tenant),)


def decide_remove_tenant(state: ClusterState, command: RemoveTenant) -> Decision:
    tenant_id = command.tenant_id
    if tenant_id not in state.tenants:
        return UnknownTenant(tenant_id=tenant_id)
    waiting, running = waiting_count(state, tenant_id), state.accounts.open(tenant_id).running
    if waiting or running:
        return TenantBusy(tenant_id=tenant_id, waiting=waiting, running=running)
    return (TenantRemoved(at=command.at, tenant_id=tenant_id),)


def waiting_count(state: ClusterState, tenant_id: TenantId) -> int:
    account = state.accounts.by_tenant.get(tenant_id)
    return 0 if account is None else sum(len(line) for line in lines_of(account))


def charge_due(state: ClusterState, at: int) -> tuple[Event, ...]:
    """Every minute in which a task runs or waits. Waiting counts, too: a new month may have renewed a budget."""
    if not state.tenants or at - state.meter.charged_at < STEP_MS:
        return ()
    return (UsageCharged(at=at),) if state.leases or state.queue.count else ()


# checks of a submit


def refused_by_quota(state: ClusterState, shape: Shape, entry: int) -> Rejection | None:
    """Refuses a task beyond the maximum of its tenant or pool: waiting cannot help."""
    refusal = refused_by_tenant(state, shape, entry) if state.tenants else None
    if refusal is not None or not shape.gpus or state.quota.mode is not QuotaMode.STRICT or not state.nodes:
        return refusal
    # All registered GPUs count here, also GPUs that are lost or faulty at the moment.
    counts = state.rooms.counts
    most = split(sum(counts) - counts[_RESERVED], state.quota.online_ppm).milli(shape.pool)
    milli = claim_of(shape).milli
    if milli <= most:
        return None
    return ExceedsQuota(
        entry=entry, holder=f"{shape.pool.value} pool", milli_requested=milli, gpus_quota=most // WHOLE_MILLI
    )


def refused_by_tenant(state: ClusterState, shape: Shape, entry: int) -> Rejection | None:
    tenant = state.tenants.get(shape.tenant_id)
    if tenant is None:
        return (
            None if state.settings.creates_tenants else UnknownTenant(tenant_id=shape.tenant_id, entry=entry)
        )
    if shape.pool not in tenant.pools:
        pools = ", ".join(pool.value for pool in tenant.pools)
        return PoolNotAllowed(entry=entry, tenant_id=tenant.id, pool=shape.pool.value, pools=pools)
    too_high = priority_too_high(tenant, shape.priority, entry)
    return too_high or (_too_large(tenant, shape, entry) if shape.gpus else None)


def priority_too_high(tenant: Tenant, priority: int, entry: int) -> PriorityTooHigh | None:
    limit = tenant.max_priority
    if limit is None or priority <= limit:
        return None
    return PriorityTooHigh(entry=entry, tenant_id=tenant.id, priority=priority, max_priority=limit)


def _too_large(tenant: Tenant, shape: Shape, entry: int) -> Rejection | None:
    claim = claim_of(shape)
    if tenant.max_gpus is not None and claim.milli > tenant.max_gpus * WHOLE_MILLI:
        return ExceedsQuota(
            entry=entry,
            holder=f"tenant {tenant.id}",
            milli_requested=claim.milli,
            gpus_quota=tenant.max_gpus,
        )
    max_mb = tenant.max_gpu_memory_mb
    if max_mb is None:
        return None
    if not claim.memory_mb:
        # Without a demand, its use of the memory limit would be unknown.
        return MemoryNotStated(entry=entry, tenant_id=tenant.id, quota_mb=max_mb)
    if claim.memory_mb > max_mb:
        return ExceedsMemory(entry=entry, tenant_id=tenant.id, requested_mb=claim.memory_mb, quota_mb=max_mb)
    return None


def refused_by_number(state: ClusterState, entries: Sequence[tuple[int, TaskSpec]]) -> Rejection | None:
    """Refuses a submit if its tenant would have too many waiting tasks."""
    submitted: Counter[TenantId] = Counter()
    for number, spec in entries:
        submitted[spec.shape.tenant_id] += number
    for tenant_id, number in submitted.items():
        tenant = state.tenants.get(tenant_id)
        if tenant is None or tenant.max_waiting is None:
            continue
        waiting = waiting_count(state, tenant_id)
        if waiting + number > tenant.max_waiting:
            return TenantQueueFull(
                tenant_id=tenant_id, waiting=waiting, submitted=number, limit=tenant.max_waiting
            )
    return None


def new_tenants(
    state: ClusterState, entries: Sequence[tuple[int, TaskSpec]], at: int
) -> tuple[Event, ...] | Rejection:
    """Where the settings allow it, a tenant is created without limits when it is first named."""
    if not state.settings.creates_tenants:
        return ()
    named = dict.fromkeys(spec.shape.tenant_id for _, spec in entries)
    unknown = [tenant_id for tenant_id in named if tenant_id not in state.tenants]
    if len(state.tenants) + len(unknown) > MAX_TENANTS:
        return TooManyTenants(limit=MAX_TENANTS)
    return tuple([TenantSet(at=at, tenant=Tenant(id=tenant_id)) for tenant_id in unknown])
