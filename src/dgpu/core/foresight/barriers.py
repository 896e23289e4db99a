"""Pool and tenant rules that keep a waiting task from starting: the refusals of rules.admission, in words."""

from __future__ import annotations

from dgpu.core.foresight.blockers import Blocker, plural
from dgpu.core.index.limits import quota_of
from dgpu.core.index.line import Claim, Line
from dgpu.core.model.ids import TaskId
from dgpu.core.model.quota import OTHER_POOL, QuotaMode
from dgpu.core.model.task import WHOLE_MILLI, in_units
from dgpu.core.model.usage import HOUR_MS
from dgpu.core.refusals import (
    GuaranteedToOthers,
    PoolQuota,
    Refusal,
    TenantBudget,
    TenantGpus,
    TenantMemory,
    TenantRunning,
)
from dgpu.core.rules.access import access_of
from dgpu.core.rules.admission import free_milli, refusals, used_milli
from dgpu.core.rules.place import beside_reservations, claim_of_spots
from dgpu.core.state import ClusterState


def barriers_of(state: ClusterState, line: Line, task_id: TaskId, at: int) -> list[Blocker]:
    found = refusals(state, line, _claim(state, line), access_of(state, line, task_id, at))
    return [blocker_of(state, refusal) for refusal in found]


def _claim(state: ClusterState, line: Line) -> Claim:
    """The claim of a share depends on the GPU that it would get now."""
    spots = beside_reservations(state, line.demand) if line.known.is_part else []
    return claim_of_spots(spots) if spots else line.claim


def blocker_of(state: ClusterState, refusal: Refusal) -> Blocker:
    numbers: dict[str, int | str]
    match refusal:
        case PoolQuota():
            return _pool(state, refusal)
        case TenantRunning(tenant_id=name, running=running, limit=limit):
            detail = f"tenant {name} runs {running} of at most {plural(limit, 'task')}"
            numbers = {"running": running, "limit": limit}
        case TenantGpus(tenant_id=name, limit_gpus=limit):
            held, asked = in_units(refusal.held_milli), in_units(refusal.asked_milli)
            detail = f"tenant {name} holds {held} of at most {plural(limit, 'GPU')}, it asks for {asked}"
            numbers = {"held": held, "limit": limit, "asked": asked}
            detail += _reserved(refusal.reserved_milli, numbers)
        case TenantMemory(tenant_id=name, held_mb=held_mb, limit_mb=limit_mb, asked_mb=asked_mb):
            detail = f"tenant {name} holds {held_mb} of at most {limit_mb} MB of GPU memory, it asks for {asked_mb}"
            numbers = {"held_mb": held_mb, "limit_mb": limit_mb, "asked_mb": asked_mb}
        case TenantBudget(tenant_id=name, renews_at=renews_at):
            used, budget = in_units(refusal.used // HOUR_MS), in_units(refusal.limit // HOUR_MS)
            detail = f"tenant {name} has used {used} of its {budget} GPU-hours of this month"
            numbers = {"used_hours": used, "limit_hours": budget, "renews_at": renews_at}
        case GuaranteedToOthers():
            kept, idle, names = (
                in_units(refusal.kept_milli),
                in_units(refusal.idle_milli),
                ", ".join(refusal.tenants),
            )
            detail = f"{kept} of {idle} idle GPUs are kept for the guarantees of {names}"
            numbers = {"kept": kept, "idle": idle, "asked": in_units(refusal.asked_milli), "tenants": names}
        case _:
            raise AssertionError(f"{type(refusal).__name__} has no words here")
    return Blocker(code=refusal.code, detail=detail, numbers=numbers)


def _pool(state: ClusterState, refusal: PoolQuota) -> Blocker:
    pool = refusal.pool
    quota, used = quota_of(state).milli(pool), in_units(used_milli(state, pool))
    free, asked = in_units(max(0, free_milli(state, state.queue.pools[pool]))), in_units(refusal.asked_milli)
    total = quota // WHOLE_MILLI
    detail = (
        f"its pool ({pool.value}) uses {used} of {plural(total, 'GPU')}; {free} left, it asks for {asked}"
    )
    numbers: dict[str, int | str] = {
        "pool": pool.value,
        "quota": total,
        "used": used,
        "left": free,
        "asked": asked,
    }
    detail += _reserved(refusal.reserved_milli, numbers)
    if state.quota.mode is QuotaMode.BORROW:
        other = OTHER_POOL[pool]
        numbers["other_quota"] = quota_of(state).milli(other) // WHOLE_MILLI
        numbers["other_used"] = in_units(used_milli(state, other))
        detail += f", and the {other.value} pool needs the rest of its own"
    return Blocker(code=refusal.code, detail=detail, numbers=numbers)


def _reserved(milli: int, numbers: dict[str, int | str]) -> str:
    if not milli:
        return ""
    numbers["reserved"] = in_units(milli)
    are = "is" if milli == WHOLE_MILLI else "are"
    return f", and {in_units(milli)} {are} reserved for tasks that it would delay"
