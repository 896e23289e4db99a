"""May a task start, as far as pools and tenants go? All arithmetic of quotas, limits and guarantees is here.

A pool may use its quota. With `borrow` it may also use what the other pool neither uses nor needs: needed is what
waits there, could start as far as its tenants' limits go, and fits into the quota that its pool has left.

A tenant may hold what its limits say. What is missing to a tenant's guarantee is kept for it while it waits: others
may not take the idle GPUs that the tasks it could start now need. It is a number of GPUs, not certain ones.
"""

from __future__ import annotations

from typing import Final

from dgpu.core.events import Event, GangPlaced, TaskPlaced
from dgpu.core.index.account import Account
from dgpu.core.index.lane import UNBOUNDED, Lane
from dgpu.core.index.limits import quota_of, schedulable, settle_pools
from dgpu.core.index.line import Claim, Line
from dgpu.core.index.room import Slot
from dgpu.core.model.quota import QuotaMode
from dgpu.core.model.task import WHOLE_MILLI, Pool, Shape
from dgpu.core.model.usage import HOUR_MS
from dgpu.core.state import ClusterState

_IDLE: Final = int(Slot.IDLE)
_BORROW: Final = QuotaMode.BORROW


def claim_of(shape: Shape) -> Claim:
    """Exact for whole GPUs. A share takes at least this: with a memory demand, it depends on the card. A crowd knows that
    of its tasks.
    """
    gpus = shape.gpus * shape.nodes
    return Claim(gpus * shape.share_milli, gpus * shape.gpu_memory_mb)


def claim_of_grant(granted: tuple[Event, ...]) -> Claim:
    placed = granted[0]
    ranks = placed.ranks if isinstance(placed, GangPlaced) else (placed,)
    milli = memory_mb = 0
    for rank in ranks:
        if isinstance(rank, TaskPlaced):
            milli += rank.share_milli * len(rank.gpu_ids)
            memory_mb += rank.gpu_memory_mb * len(rank.gpu_ids)
    return Claim(milli, memory_mb)


def admits(state: ClusterState, line: Line, claim: Claim) -> bool:
    """By every rule of this file."""
    settle_pools(state)
    return (
        has_quota(state, line.crowd.lane, claim.milli)
        and within_limits(state, line.account, claim)
        and not is_kept(state, line.account, claim)
    )


# pools


def used_milli(state: ClusterState, pool: Pool) -> int:
    """What the pool holds of the GPUs that count."""
    settle_pools(state)
    lane = state.waiting.lanes[pool]
    return lane.used_milli + quota_of(state).milli(pool) - lane.limit_milli


def has_quota(state: ClusterState, lane: Lane, milli: int) -> bool:
    if not milli or lane.used_milli + milli <= lane.limit_milli:
        return True
    if state.quota.mode is not _BORROW:
        return False
    # Mostly nobody waits there, and this is asked for every grant.
    return lane.other is None or not lane.other.ready or milli <= free_milli(state, lane)


def free_milli(state: ClusterState, lane: Lane) -> int:
    """What a pool may still take, borrowed quota included. Below 0: it holds more than it may. Where the other pool
    needs nothing, no rule is in the way: only GPUs themselves can be short.
    """
    own = lane.limit_milli - lane.used_milli
    other = lane.other
    if other is None or state.quota.mode is not _BORROW:
        return own
    spare = other.limit_milli - other.used_milli
    needed = needed_milli(state, other, spare) if other.ready and spare > 0 else 0
    return own + spare - needed if needed else UNBOUNDED


def available_milli(state: ClusterState, pool: Pool) -> int:
    """What a pool may still take and is there: no rule keeps it, no task holds it."""
    unused = WHOLE_MILLI * schedulable(state) - sum(used_milli(state, each) for each in Pool)
    return max(0, min(unused, free_milli(state, state.waiting.lanes[pool])))


def needed_milli(state: ClusterState, lane: Lane, spare: int) -> int:
    """How much of its unused quota the pool needs for what waits."""
    needed = 0
    for line in lane.ready.values():
        milli = line.crowd.milli
        if milli <= spare and within_limits(state, line.account, line.crowd.claim):
            needed += milli * line.ready_count
            if needed >= spare:
                return spare
    return needed


# tenants


def within_limits(state: ClusterState, account: Account, claim: Claim) -> bool:
    tenant = account.tenant
    if tenant is None or not account.limited:
        return True
    if tenant.max_running is not None and account.running >= tenant.max_running:
        return False
    if not claim.milli:
        return True
    if tenant.max_gpus is not None and account.milli + claim.milli > tenant.max_gpus * WHOLE_MILLI:
        return False
    most_mb = tenant.max_gpu_memory_mb
    if most_mb is not None and account.memory_mb + claim.memory_mb > most_mb:
        return False
    return tenant.gpu_hours_milli is None or spent(state, account) < budget(account)


def spent(state: ClusterState, account: Account) -> int:
    """In the current month, as far as charged."""
    usage = state.usages.get(account.tenant_id)
    if usage is None or usage.month < state.accounts.month_at(state.meter.charged_at):
        return 0
    return usage.of_month


def budget(account: Account) -> int:
    tenant = account.tenant
    return 0 if tenant is None else (tenant.gpu_hours_milli or 0) * HOUR_MS


# guarantees


def is_kept(state: ClusterState, account: Account, claim: Claim) -> bool:
    """Would it take what is kept for the guarantees of others?"""
    guaranteed = state.accounts.guaranteed
    if not guaranteed or not claim.milli:
        return False
    short, missing = [], 0
    for other in guaranteed.values():
        if other.milli < other.guaranteed_milli and other is not account:
            short.append(other)
            missing += other.guaranteed_milli - other.milli
    if not short or claim.milli <= account.short_milli():
        return False
    left = idle_milli(state) - _whole(claim.milli)
    if missing <= left:
        return False  # whatever of it has to be kept
    kept = 0
    for other in short:
        kept += kept_milli(state, other)
        if kept > max(left, 0):  # where nothing is idle, less than nothing would be left
            return True
    return False


def kept_milli(state: ClusterState, account: Account) -> int:
    """Of what is missing to a guarantee: as much as the tenant has tasks for that could start now."""
    short = account.short_milli()
    if short <= 0:
        return 0
    wanted = 0
    for line in account.lines.values():
        milli = line.crowd.milli
        if not line.head or not milli:
            continue
        if has_quota(state, line.crowd.lane, milli) and within_limits(state, account, line.crowd.claim):
            wanted += milli * line.ready_count
            if wanted >= short:
                return short
    return wanted


def idle_milli(state: ClusterState) -> int:
    return state.rooms.counts[_IDLE] * WHOLE_MILLI


def _whole(milli: int) -> int:
    """A share may take a whole idle GPU out of what others can have."""
    return -(-milli // WHOLE_MILLI) * WHOLE_MILLI
