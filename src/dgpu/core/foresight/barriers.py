"""Why a waiting task may not start, regardless of room, in words: the refusals of rules.admission, and the conditions
of the task itself. It is held, it waits for other tasks, or its array runs its maximum of tasks.
"""

from __future__ import annotations

from typing import Final

from dgpu.core.foresight.blockers import Blocker, blocker, plural
from dgpu.core.foresight.call_barriers import call_barriers
from dgpu.core.index.limits import quota_of
from dgpu.core.index.line import Claim, Line
from dgpu.core.model.dependencies import Dependency
from dgpu.core.model.ids import TaskId, task_name
from dgpu.core.model.quota import OTHER_POOL, QuotaMode
from dgpu.core.model.task import WHOLE_MILLI, Shape, Task, in_units
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
    if line.shape.app:
        return call_barriers(state, line, at)
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
            numbers = {"tenant": name, "running": running, "limit": limit}
        case TenantGpus(tenant_id=name, limit_gpus=limit):
            held, asked = in_units(refusal.held_milli), in_units(refusal.asked_milli)
            detail = f"tenant {name} holds {held} of at most {plural(limit, 'GPU')}, it asks for {asked}"
            numbers = {"tenant": name, "held": held, "limit": limit, "asked": asked}
            detail += _reserved(refusal.reserved_milli, numbers)
        case TenantMemory(tenant_id=name, held_mb=held_mb, limit_mb=limit_mb, asked_mb=asked_mb):
            detail = f"tenant {name} holds {held_mb} of at most {limit_mb} MB of GPU memory, it asks for {asked_mb}"
            numbers = {"tenant": name, "held_mb": held_mb, "limit_mb": limit_mb, "asked_mb": asked_mb}
        case TenantBudget(tenant_id=name, renews_at=renews_at):
            used, budget = in_units(refusal.used // HOUR_MS), in_units(refusal.limit // HOUR_MS)
            detail = f"tenant {name} has used {used} of its {budget} GPU-hours of this month"
            numbers = {"tenant": name, "used_hours": used, "limit_hours": budget, "renews_at": renews_at}
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
        numbers["other_pool"] = other.value
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


_MAX_NAMED: Final = 5


def conditions_of(state: ClusterState, task: Task) -> list[Blocker]:
    found: list[Blocker] = []
    if task.held:
        found.append(blocker("held", "it is held; it can be placed once it is released"))
    awaited = state.after.get(task.id)
    if awaited is not None:
        if awaited.broken is not None:
            detail = f"it waited for {awaited.broken.in_words()}, which ended otherwise: it is about to be cancelled"
            found.append(blocker("dependency_failed", detail, tasks=_named((awaited.broken,)), number=1))
        else:
            found.append(_dependencies(awaited.on))
    shape = state.shapes[task.shape_id]
    running = state.queue.running_of(shape.array_id)
    if shape.array_id and running >= shape.array_limit:
        found.append(_array_full(shape, running))
    return found


def _dependencies(on: tuple[Dependency, ...]) -> Blocker:
    named = ", ".join(each.in_words() for each in on[:_MAX_NAMED])
    more = max(0, len(on) - _MAX_NAMED)
    detail = f"it waits for {named}{f' and {more} more' if more else ''}"
    return blocker("dependency", detail, tasks=_named(on), number=len(on), more=more)


def _named(on: tuple[Dependency, ...]) -> str:
    return ", ".join(f"{task_name(each.task_id)}:{each.when}" for each in on[:_MAX_NAMED])


def _array_full(shape: Shape, running: int) -> Blocker:
    detail = f"{running} tasks of its array run, and at most {shape.array_limit} may run at once"
    array = task_name(shape.array_id)
    return blocker("array_limit", detail, array=array, running=running, limit=shape.array_limit)
