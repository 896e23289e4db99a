"""Whether pools and tenants let a task start. Each rule is one function that returns its refusal or None.

A pool may use its quota. With `borrow` it may also use quota that the other pool neither uses nor needs. A pool needs
quota for its waiting tasks that fit into the rest of its quota and that their tenants' limits allow to start.

A tenant may hold GPUs up to its limits. While a tenant with a guarantee waits, the unused part of its guarantee is
kept: other tenants may not take the idle GPUs for tasks that it could start now. This is a number of GPUs, not specific
ones.

A reservation holds quota as it holds GPUs: a task that would delay it may not take that quota (see access).
"""

from __future__ import annotations

from typing import Final

from dgpu.core.index.account import Account, PoolUse
from dgpu.core.index.limits import quota_of, schedulable, settle_pools
from dgpu.core.index.line import Claim, Line
from dgpu.core.model.quota import QuotaMode
from dgpu.core.model.task import WHOLE_MILLI, Pool
from dgpu.core.model.usage import HOUR_MS, month_starts_at
from dgpu.core.refusals import (
    GuaranteedToOthers,
    PoolQuota,
    Refusal,
    TenantBudget,
    TenantGpus,
    TenantMemory,
    TenantRunning,
)
from dgpu.core.rules.access import Access, is_favoured
from dgpu.core.state import ClusterState

UNBOUNDED: Final = 1 << 62  # more than any cluster has
_BORROW: Final = QuotaMode.BORROW
NOTHING: Final = Claim(0, 0)


# pools


def pool_quota(state: ClusterState, line: Line, claim: Claim, access: Access) -> Refusal | None:
    """Reservations that the task would delay count as used quota of the pool."""
    pool = line.pool
    if not claim.milli or pool.pool is None:
        return None
    reserved = _reserved_of_pool(line, access) if access.delayed else 0
    if has_quota(state, pool, claim.milli + reserved):
        return None
    return PoolQuota(pool=pool.pool, asked_milli=claim.milli, reserved_milli=reserved)


def _reserved_of_pool(line: Line, access: Access) -> int:
    """The reserved quota that the task may not take. A reservation whose tenant is at its limit keeps no quota from
    others: it gets the quota that its own tenant's tasks release.
    """
    milli = 0
    for booking in access.delayed:
        other = booking.line
        if other.pool is line.pool and not (
            other.account.limited and limited_quota(other.account, other.claim) is not None
        ):
            milli += other.claim.milli
    return milli


def has_quota(state: ClusterState, pool: PoolUse, milli: int) -> bool:
    if not milli or pool.used_milli + milli <= pool.limit_milli:
        return True
    if state.quota.mode is not _BORROW:
        return False
    # This runs for every grant, and usually no task waits in the other pool.
    return pool.other is None or not pool.other.ready or milli <= free_milli(state, pool)


def free_milli(state: ClusterState, pool: PoolUse) -> int:
    """The quota that a pool may still take, with borrowed quota. Below 0: it holds more than it may. If the other pool
    needs nothing, no rule limits this pool: only the GPUs themselves can be short.
    """
    own = pool.limit_milli - pool.used_milli
    other = pool.other
    if other is None or state.quota.mode is not _BORROW:
        return own
    spare = other.limit_milli - other.used_milli
    needed = needed_milli(state, other, spare) if other.ready and spare > 0 else 0
    return own + spare - needed if needed else UNBOUNDED


def needed_milli(state: ClusterState, pool: PoolUse, spare: int) -> int:
    """The unused quota that the pool needs for its waiting tasks. A reservation counts even if it is larger."""
    needed = 0
    reserved = {state.queue.line_of(state.tasks[task_id]) for task_id in state.reservations}
    for line in pool.ready:
        milli = line.claim.milli
        if milli > spare and line not in reserved:
            continue
        if tenant_limits(state, line.account, line.claim) is None:
            needed += milli * line.ready_count
            if needed >= spare:
                return spare
    return needed


def used_milli(state: ClusterState, pool: Pool) -> int:
    """The quota that the pool uses, of the GPUs that count."""
    settle_pools(state)
    use = state.queue.pools[pool]
    return use.used_milli + quota_of(state).milli(pool) - use.limit_milli


def available_milli(state: ClusterState, pool: Pool) -> int:
    """The quota that a pool may still take and that is idle: no rule keeps it, no task holds it."""
    unused = WHOLE_MILLI * schedulable(state) - sum(used_milli(state, each) for each in Pool)
    return max(0, min(unused, free_milli(state, state.queue.pools[pool])))


# tenants


def tenant_running(account: Account, tasks: int = 0) -> Refusal | None:
    """`tasks`: tasks of the tenant that count as running although they have not started."""
    tenant = account.tenant
    if tenant is None or tenant.max_running is None or account.running + tasks < tenant.max_running:
        return None
    return TenantRunning(tenant_id=tenant.id, running=account.running, limit=tenant.max_running)


def tenant_budget(state: ClusterState, account: Account, claim: Claim) -> Refusal | None:
    tenant = account.tenant
    if tenant is None or tenant.gpu_hours_milli is None or not claim.milli:
        return None
    usage, limit = state.usages.get(account.tenant_id), tenant.gpu_hours_milli * HOUR_MS
    if usage is not None and usage.of_month < limit:
        return None  # in any month: the calendar is not asked for every task
    used = spent(state, account)
    if used < limit:
        return None
    renews_at = month_starts_at(state.month_at(state.meter.charged_at) + 1)
    return TenantBudget(tenant_id=tenant.id, used=used, limit=limit, renews_at=renews_at)


def tenant_gpus(account: Account, claim: Claim, reserved: Claim = NOTHING) -> Refusal | None:
    tenant = account.tenant
    if tenant is None or tenant.max_gpus is None or not claim.milli:
        return None
    if account.milli + claim.milli + reserved.milli <= tenant.max_gpus * WHOLE_MILLI:
        return None
    return TenantGpus(
        tenant_id=tenant.id,
        held_milli=account.milli,
        limit_gpus=tenant.max_gpus,
        asked_milli=claim.milli,
        reserved_milli=reserved.milli,
    )


def tenant_memory(account: Account, claim: Claim, reserved: Claim = NOTHING) -> Refusal | None:
    tenant = account.tenant
    if tenant is None or tenant.max_gpu_memory_mb is None or not claim.milli:
        return None
    if account.memory_mb + claim.memory_mb + reserved.memory_mb <= tenant.max_gpu_memory_mb:
        return None
    return TenantMemory(
        tenant_id=tenant.id,
        held_mb=account.memory_mb,
        limit_mb=tenant.max_gpu_memory_mb,
        asked_mb=claim.memory_mb,
        reserved_mb=reserved.memory_mb,
    )


def held_by(account: Account) -> Claim:
    return Claim(account.milli, account.memory_mb)


def beyond_limits(account: Account, wanted: Claim) -> Claim:
    """What of this is beyond the limits of the tenant; 0 or less: nothing."""
    tenant = account.tenant
    if tenant is None:
        return NOTHING
    milli = 0 if tenant.max_gpus is None else wanted.milli - tenant.max_gpus * WHOLE_MILLI
    memory_mb = 0 if tenant.max_gpu_memory_mb is None else wanted.memory_mb - tenant.max_gpu_memory_mb
    return Claim(milli, memory_mb)


def _reserved_of_tenant(line: Line, access: Access) -> Claim:
    """The reserved limits of the tenant that the task may not take."""
    if not access.delayed:
        return NOTHING
    milli = memory_mb = 0
    for booking in access.delayed:
        other = booking.line
        if other.account is line.account:
            milli += other.claim.milli
            memory_mb += other.claim.memory_mb
    return Claim(milli, memory_mb)


def tenant_quota(line: Line, claim: Claim, access: Access) -> Refusal | None:
    """The limits of the tenant that a reservation can secure. Reservations that the task would delay count as used."""
    return limited_quota(line.account, claim, _reserved_of_tenant(line, access))


def limited_quota(account: Account, claim: Claim, reserved: Claim = NOTHING) -> Refusal | None:
    return tenant_gpus(account, claim, reserved) or tenant_memory(account, claim, reserved)


def tenant_limits(state: ClusterState, account: Account, claim: Claim) -> Refusal | None:
    """The first limit of the tenant that refuses the task."""
    if not account.limited:
        return None
    return (
        tenant_running(account)
        or tenant_budget(state, account, claim)
        or tenant_gpus(account, claim)
        or tenant_memory(account, claim)
    )


def spent(state: ClusterState, account: Account) -> int:
    """The charge of the current month so far."""
    usage = state.usages.get(account.tenant_id)
    if usage is None or usage.month < state.month_at(state.meter.charged_at):
        return 0
    return usage.of_month


# guarantees


def guarantees(state: ClusterState, account: Account, claim: Claim) -> Refusal | None:
    """Refuses a task that would take idle GPUs kept for the guarantees of others. A share may take a whole GPU."""
    guaranteed = state.accounts.guaranteed
    if not guaranteed or not claim.milli or claim.milli <= account.short_milli():
        return None
    others = [each for each in guaranteed.values() if each is not account and each.short_milli() > 0]
    idle = state.rooms.idle_milli
    left = idle - -(-claim.milli // WHOLE_MILLI) * WHOLE_MILLI
    if sum([other.short_milli() for other in others]) <= left:
        return None  # enough is left even if the full guarantees are kept
    kept = {other.tenant_id: kept_milli(state, other) for other in others}
    total = sum(kept.values())
    if total <= max(left, 0):
        return None
    return GuaranteedToOthers(
        kept_milli=total,
        idle_milli=idle,
        asked_milli=claim.milli,
        tenants=tuple(sorted(tenant_id for tenant_id, milli in kept.items() if milli)),
    )


def kept_milli(state: ClusterState, account: Account) -> int:
    """The part of the unused guarantee for which the tenant has tasks that could start now."""
    short = account.short_milli()
    wanted = 0
    for line in lines_of(account):
        milli = line.claim.milli
        if line.head and is_favoured(line) and has_quota(state, line.pool, milli):
            if tenant_limits(state, account, line.claim) is None:
                wanted += milli * line.ready_count
            if wanted >= short:
                return max(0, short)
    return wanted


def lines_of(account: Account) -> list[Line]:
    return [line for known in account.shapes.values() for line in known.lines.values()]


# all rules


def admit(state: ClusterState, line: Line, claim: Claim, access: Access) -> Refusal | None:
    """The first rule that refuses. Rules that no reservation can help with come first."""
    if not state.tenants:
        return pool_quota(state, line, claim, access)
    account = line.account
    refusal = first_unreservable(state, account, claim) or pool_quota(state, line, claim, access)
    if refusal is not None or not account.limited:
        return refusal
    return tenant_quota(line, claim, access)


def first_unreservable(state: ClusterState, account: Account, claim: Claim) -> Refusal | None:
    if account.limited:
        refusal = tenant_running(account) or tenant_budget(state, account, claim)
        if refusal is not None:
            return refusal
    return guarantees(state, account, claim)


def refusals(state: ClusterState, line: Line, claim: Claim, access: Access) -> list[Refusal]:
    """All rules that refuse, for `why`."""
    settle_pools(state)
    account = line.account
    by_tenant = _reserved_of_tenant(line, access)
    found = [
        pool_quota(state, line, claim, access),
        tenant_running(account),
        tenant_gpus(account, claim, by_tenant),
        tenant_memory(account, claim, by_tenant),
        tenant_budget(state, account, claim),
        guarantees(state, account, claim),
    ]
    return [refusal for refusal in found if refusal is not None]
