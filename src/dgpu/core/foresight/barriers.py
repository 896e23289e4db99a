"""What keeps a waiting task from starting as far as pools and tenants go: exactly the rules of rules.admission that fail."""

from __future__ import annotations

from dgpu.core.foresight.blockers import Blocker, plural
from dgpu.core.index.account import Account
from dgpu.core.index.lane import Lane
from dgpu.core.index.limits import quota_of, settle_pools
from dgpu.core.index.line import Claim, Line
from dgpu.core.model.quota import OTHER_POOL, QuotaMode
from dgpu.core.model.task import WHOLE_MILLI, Pool
from dgpu.core.model.tenant import Tenant
from dgpu.core.model.usage import HOUR_MS, month_starts_at
from dgpu.core.rules.admission import (
    budget,
    claim_of_grant,
    free_milli,
    has_quota,
    idle_milli,
    is_kept,
    kept_milli,
    spent,
    used_milli,
)
from dgpu.core.rules.gang import grant_gang
from dgpu.core.state import ClusterState


def barriers_of(state: ClusterState, line: Line) -> list[Blocker]:
    settle_pools(state)
    claim = _claim(state, line)
    found = []
    if not has_quota(state, line.crowd.lane, claim.milli):
        found.append(_pool(state, line.crowd.lane, claim))
    account = line.account
    if account.tenant is not None and account.tenant.limits_grants:
        found += _limits(state, account, account.tenant, claim)
    if is_kept(state, account, claim):
        found.append(_kept(state, account, claim))
    return found


def gpus(milli: int) -> int | str:
    """Whole GPUs as a number, parts of one as text."""
    whole, part = divmod(milli, WHOLE_MILLI)
    return f"{whole}.{part:03d}".rstrip("0") if part else whole


def hours(milli_ms: int) -> int | str:
    return gpus(milli_ms // HOUR_MS)


def _claim(state: ClusterState, line: Line) -> Claim:
    """A share counts for what it takes of the card it would get now."""
    demand = line.crowd.demand
    claim = line.crowd.claim
    if not line.crowd.takes_part_of_a_card:
        return claim
    if demand.nodes > 1:
        task_id = next(line.after(line.head - 1), None)  # type: ignore[arg-type]
        granted = () if task_id is None else grant_gang(state, task_id, demand, 0)
        return claim_of_grant(granted) if granted else claim
    spot = state.rooms.find(demand)
    if spot is None:
        return claim
    return Claim(spot.share_milli * len(spot.cards), spot.gpu_memory_mb * len(spot.cards))


def _pool(state: ClusterState, lane: Lane, claim: Claim) -> Blocker:
    pool = lane.pool or Pool.BATCH
    quota, used = quota_of(state).milli(pool), used_milli(state, pool)
    free = max(0, free_milli(state, lane))
    detail = (
        f"its pool ({pool.value}) uses {gpus(used)} of {plural(quota // WHOLE_MILLI, 'GPU')};"
        f" {gpus(free)} left, it asks for {gpus(claim.milli)}"
    )
    numbers: dict[str, int | str] = {
        "pool": pool.value,
        "quota": quota // WHOLE_MILLI,
        "used": gpus(used),
        "left": gpus(free),
        "asked": gpus(claim.milli),
    }
    if state.quota.mode is QuotaMode.BORROW:
        other = OTHER_POOL[pool]
        numbers["other_quota"] = quota_of(state).milli(other) // WHOLE_MILLI
        numbers["other_used"] = gpus(used_milli(state, other))
        detail += f", and the {other.value} pool needs the rest of its own"
    return Blocker(code="pool_quota", detail=detail, numbers=numbers)


def _limits(state: ClusterState, account: Account, tenant: Tenant, claim: Claim) -> list[Blocker]:
    found = []
    name = tenant.id
    if tenant.max_running is not None and account.running >= tenant.max_running:
        detail = f"tenant {name} runs {account.running} of at most {plural(tenant.max_running, 'task')}"
        numbers: dict[str, int | str] = {"running": account.running, "limit": tenant.max_running}
        found.append(Blocker(code="tenant_running", detail=detail, numbers=numbers))
    if not claim.milli:
        return found
    if tenant.max_gpus is not None and account.milli + claim.milli > tenant.max_gpus * WHOLE_MILLI:
        held = gpus(account.milli)
        detail = f"tenant {name} holds {held} of at most {plural(tenant.max_gpus, 'GPU')}, it asks for {gpus(claim.milli)}"
        numbers = {"held": held, "limit": tenant.max_gpus, "asked": gpus(claim.milli)}
        found.append(Blocker(code="tenant_gpus", detail=detail, numbers=numbers))
    most_mb = tenant.max_gpu_memory_mb
    if most_mb is not None and account.memory_mb + claim.memory_mb > most_mb:
        detail = (
            f"tenant {name} holds {account.memory_mb} of at most {most_mb} MB of GPU memory,"
            f" it asks for {claim.memory_mb}"
        )
        numbers = {"held_mb": account.memory_mb, "limit_mb": most_mb, "asked_mb": claim.memory_mb}
        found.append(Blocker(code="tenant_memory", detail=detail, numbers=numbers))
    if tenant.gpu_hours_milli is not None and spent(state, account) >= budget(account):
        found.append(_budget(state, account, tenant))
    return found


def _budget(state: ClusterState, account: Account, tenant: Tenant) -> Blocker:
    used, limit = hours(spent(state, account)), hours(budget(account))
    renews_at = month_starts_at(state.accounts.month_at(state.meter.charged_at) + 1)
    detail = f"tenant {tenant.id} has used {used} of its {limit} GPU-hours of this month"
    numbers: dict[str, int | str] = {"used_hours": used, "limit_hours": limit, "renews_at": renews_at}
    return Blocker(code="tenant_budget", detail=detail, numbers=numbers)


def _kept(state: ClusterState, account: Account, claim: Claim) -> Blocker:
    others = [each for each in state.accounts.guaranteed.values() if each is not account]
    kept = {each.tenant_id: milli for each in others if (milli := kept_milli(state, each))}
    total, idle = sum(kept.values()), idle_milli(state)
    names = ", ".join(sorted(kept))
    detail = f"{gpus(total)} of {gpus(idle)} idle GPUs are kept for what is guaranteed to {names}"
    numbers: dict[str, int | str] = {
        "kept": gpus(total),
        "idle": gpus(idle),
        "asked": gpus(claim.milli),
        "tenants": names,
    }
    return Blocker(code="guaranteed_to_others", detail=detail, numbers=numbers)
