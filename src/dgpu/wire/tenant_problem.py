"""What the refusals of tenants and quota mean in HTTP (see wire.problem)."""

from __future__ import annotations

from typing import assert_never

from dgpu.core import rejections as r
from dgpu.wire.answers import FieldError
from dgpu.wire.meaning import Meaning, entry_path

OfTenants = (
    r.ExceedsQuota
    | r.ExceedsMemory
    | r.MemoryNotStated
    | r.PoolNotAllowed
    | r.PriorityTooHigh
    | r.TenantQueueFull
    | r.UnknownTenant
    | r.TenantExists
    | r.TenantBusy
    | r.TooManyTenants
    | r.QuotaInUse
)


def of_tenant(rejection: OfTenants, *, batch: bool) -> Meaning:
    match rejection:
        case (
            r.ExceedsQuota()
            | r.ExceedsMemory()
            | r.MemoryNotStated()
            | r.PoolNotAllowed()
            | r.PriorityTooHigh()
        ):
            return _beyond_tenant(rejection, batch=batch)
        case r.TenantQueueFull():
            return Meaning(
                429,
                "Too many tasks of the tenant wait",
                f"{rejection.waiting:,} tasks of tenant {rejection.tenant_id!r} wait; with {rejection.submitted:,} "
                f"more its limit of {rejection.limit:,} would be exceeded. Try again when some have run.",
            )
        case r.UnknownTenant():
            detail = f"There is no tenant {rejection.tenant_id!r}."
            if rejection.entry < 0:
                return Meaning(404, "No such tenant", detail)
            path = entry_path(rejection.entry, "tenant_id", batch=batch)
            return Meaning(
                422,
                "No such tenant",
                f"{detail} Only tenants that an operator has created may submit here.",
                (FieldError(path=path, detail=detail, code=rejection.code),),
            )
        case r.TenantExists():
            return Meaning(409, "The tenant exists", f"Tenant {rejection.tenant_id!r} already exists.")
        case r.TenantBusy():
            return Meaning(
                409,
                "The tenant has tasks",
                f"Tenant {rejection.tenant_id!r} still has tasks: {rejection.waiting:,} waiting, {rejection.running:,} "
                "running. It can be removed when all of them have ended.",
            )
        case r.TooManyTenants():
            return Meaning(409, "Too many tenants", f"At most {rejection.limit:,} tenants are allowed.")
        case r.QuotaInUse():
            return Meaning(
                409,
                "Running tasks hold more",
                f"The {rejection.pool} pool uses {rejection.used_milli / 1000:g} GPUs and would get {rejection.quota}. "
                f"No task is stopped for a strict quota: wait until enough tasks have ended.",
            )
        case _:
            assert_never(rejection)


def _changing(holder: str) -> str:
    kind, _, name = holder.partition(" ")
    if kind == "tenant":
        return f"dgpu tenant set {name} --max-gpus N"
    return "dgpu quota set --online PART or --mode borrow (keys quota.online_percent and quota.mode)"


def _beyond_tenant(
    rejection: r.ExceedsQuota | r.ExceedsMemory | r.MemoryNotStated | r.PoolNotAllowed | r.PriorityTooHigh,
    *,
    batch: bool,
) -> Meaning:
    """A field exceeds what its tenant or pool may ever have."""
    title = "Beyond a limit"
    match rejection:
        case r.ExceedsQuota():
            field = "gpu_count"
            asked = f"{rejection.milli_requested / 1000:g}"
            detail = (
                f"Asks for {asked} GPUs; the {rejection.holder} may hold {rejection.gpus_quota} at most. "
                f"An administrator can change this: {_changing(rejection.holder)}."
            )
        case r.ExceedsMemory():
            field = "gpu_memory_mb"
            detail = (
                f"Asks for {rejection.requested_mb} MB of GPU memory in all; tenant {rejection.tenant_id!r} may hold "
                f"{rejection.quota_mb} at most."
            )
        case r.MemoryNotStated():
            field, title = "gpu_memory_mb", "The memory is missing"
            detail = (
                f"Tenant {rejection.tenant_id!r} may hold {rejection.quota_mb} MB of GPU memory, so each of its tasks "
                f"must state how much it needs."
            )
        case r.PoolNotAllowed():
            field = "pool"
            detail = f"Tenant {rejection.tenant_id!r} may not use the {rejection.pool} pool, only: {rejection.pools}."
        case r.PriorityTooHigh():
            field = "priority"
            detail = (
                f"The priority is {rejection.priority}; tenant {rejection.tenant_id!r} may use "
                f"{rejection.max_priority} at most."
            )
        case _:
            assert_never(rejection)
    path = entry_path(rejection.entry, field, batch=batch)
    return Meaning(422, title, detail, (FieldError(path=path, detail=detail, code=rejection.code),))
