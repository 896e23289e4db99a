"""Whose task or tenant a call names. For a principal without the right, it is like one that never was."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from dgpu.core.model.ids import TaskId, TenantId, parse_task_id
from dgpu.core.rejections import UnknownArray, UnknownDependency, UnknownTask, UnknownTenant
from dgpu.service.access import anonymous
from dgpu.service.access.principal import Principal
from dgpu.service.access.table import Action, may
from dgpu.service.rest.attempt import note_tenant
from dgpu.service.rest.backend import Backend, ProblemError
from dgpu.wire.answers import FieldError, Problem
from dgpu.wire.isolation import KEY
from dgpu.wire.problem import problem_of
from dgpu.wire.requests import Entries
from dgpu.wire.submitters import Submitter


async def refuse_foreign(backend: Backend, who: Principal, action: Action, named: Mapping[str, Any]) -> None:
    """`named`: the names in the path of the call."""
    if who.tenants is None:
        return
    task_id = parse_task_id(named["task_id"]) if "task_id" in named else None
    if task_id is not None:
        await refuse_foreign_task(backend, who, action, task_id)
    tenant_id = named.get("tenant_id")
    if tenant_id is not None and not may(who, action, tenant_id):
        raise ProblemError(problem_of(UnknownTenant(tenant_id=TenantId(tenant_id[:64]))))


async def refuse_foreign_task(backend: Backend, who: Principal, action: Action, task_id: TaskId) -> None:
    if who.tenants is None:
        return
    tenant_id = await tenant_of(backend, task_id)
    note_tenant(tenant_id)
    if tenant_id is None or not may(who, action, tenant_id):
        raise ProblemError(problem_of(UnknownTask(task_id=task_id)))


async def refuse_foreign_array(backend: Backend, who: Principal, array_id: TaskId) -> None:
    tenant_id = await tenant_of(backend, array_id)
    note_tenant(tenant_id)
    if tenant_id is None or not may(who, Action.CHANGE_TASK, tenant_id):
        raise ProblemError(problem_of(UnknownArray(array_id=array_id)))


async def tenant_of(backend: Backend, task_id: TaskId) -> TenantId | None:
    """Also of a task that only the history knows; None: there never was one."""
    found = await backend.runtime.read(lambda state: anonymous.tenant_of(state, task_id))
    if found is not None:
        return found
    row = await asyncio.to_thread(backend.history.task, task_id)
    return None if row is None else row.tenant_id


def submitter_of(who: Principal) -> Submitter | None:
    """The tenant and the user that a submit gets from its principal. None: as the body says."""
    if who.source == "open":
        return None
    if who.is_owner:
        return Submitter(tenant="", user=who.user, body_wins=True)
    return Submitter(tenant=who.tenants[0] if who.tenants else "", user=who.user)


async def refuse_foreign_entries(
    backend: Backend,
    who: Principal,
    entries: Entries,
    action: Action = Action.SUBMIT_TASK,
    *,
    batch: bool = False,
    path: str = "",
) -> None:
    """The tenant in a body is a wish. A dependency on another tenant's task would tell how that task ended."""
    if who.tenants is None:
        return
    checked: set[TaskId] = set()
    for number, (_, spec) in enumerate(entries):
        tenant_id = spec.shape.tenant_id
        if not may(who, action, tenant_id):
            note_tenant(tenant_id)
            where = f"tasks[{number}]." if batch else path
            raise ProblemError(_wrong_tenant(who, tenant_id, f"{where}tenant_id"))
        for dependency in spec.after:
            if dependency.task_id in checked or dependency.task_id < 0:  # of this submit
                continue
            checked.add(dependency.task_id)
            found = await tenant_of(backend, dependency.task_id)
            if found is None or not may(who, Action.READ_TASK, found):
                unknown = UnknownDependency(entry=number, task_id=dependency.task_id)
                raise ProblemError(problem_of(unknown, batch=batch))


def refuse_userless_entries(
    backend: Backend, entries: Entries, *, batch: bool = False, path: str = ""
) -> None:
    """A task whose tenant has no Unix user in the map can start on no node. An allocation starts nothing."""
    users = backend.options.isolation.users
    if isinstance(users, str):
        return
    for number, (_, spec) in enumerate(entries):
        tenant_id = spec.shape.tenant_id
        if tenant_id not in users and not spec.allocation:
            where = f"tasks[{number}]." if batch else path
            raise ProblemError(_no_unix_user(tenant_id, f"{where}tenant_id"))


def _no_unix_user(tenant_id: str, path: str) -> Problem:
    detail = (
        f"tenant_id is {tenant_id!r}, a tenant without a Unix user: its tasks cannot start on any node. Ask an "
        f"administrator to add `{tenant_id}: USER` to {KEY} in scheduler.yaml."
    )
    return Problem(
        status=409,
        code="no_unix_user",
        title="No Unix user",
        detail=detail,
        errors=[FieldError(path=path, detail=detail, code="no_unix_user")],
        facts={"tenant_id": tenant_id, "key": KEY},
    )


def _wrong_tenant(who: Principal, tenant_id: str, path: str) -> Problem:
    detail = f"tenant_id is {tenant_id!r}; {who.user} may submit for: {', '.join(who.tenants or ())}."
    return Problem(
        status=403,
        code="tenant_not_allowed",
        title="Not your tenant",
        detail=detail,
        errors=[FieldError(path=path, detail=detail, code="tenant_not_allowed")],
        facts={"tenant_id": tenant_id, "user": who.user, "tenants": ", ".join(who.tenants or ())},
    )
