"""The calls on tenants."""

from __future__ import annotations

from typing import Annotated, Any

from litestar import Request, delete, get, post, put
from litestar.params import PathParameter

from dgpu.core.commands import RemoveTenant, SetTenant
from dgpu.core.model.ids import TenantId
from dgpu.core.rejections import UnknownTenant
from dgpu.core.state import ClusterState
from dgpu.service.rest.backend import Backend, ProblemError
from dgpu.service.rest.tasks import Given, Who
from dgpu.service.views.quota import tenant_answer, tenant_list
from dgpu.wire.answers import Removed
from dgpu.wire.cluster_answers import TenantAnswer, TenantList
from dgpu.wire.problem import problem_of
from dgpu.wire.tenant_fields import decode_tenant, tenant_id_of

TenantIdText = Annotated[str, PathParameter(description="The tenant's name.")]


@get("/api/v1/tenants", summary="List tenants", description="With their limits and usage.")
async def list_tenants(rest: Given, who: Who) -> TenantList:
    found = await rest.runtime.read(lambda state: tenant_list(state, _now(rest, state)))
    own = [each for each in found.tenants if who.owns(each.id)]
    return TenantList(total=len(own), tenants=own)


@get("/api/v1/tenants/{tenant_id:str}", summary="Show a tenant", description="Its limits and usage.")
async def get_tenant(rest: Given, tenant_id: TenantIdText) -> TenantAnswer:
    return await _tenant(rest, tenant_id_of(tenant_id))


@post(
    "/api/v1/tenants",
    summary="Create a tenant",
    description="Absent limits mean no limit. Refused with 409 if the name exists.",
    status_code=201,
)
async def create_tenant(rest: Given, request: Request[Any, Any, Any]) -> TenantAnswer:
    tenant = decode_tenant(await request.body())
    await rest.do(SetTenant(tenant=tenant, is_new=True))
    return await _tenant(rest, tenant.id)


@put(
    "/api/v1/tenants/{tenant_id:str}",
    summary="Set a tenant's limits",
    description="Sets all limits: an absent one is removed. Creates the tenant if it does not exist.",
    status_code=200,
)
async def set_tenant(rest: Given, tenant_id: TenantIdText, request: Request[Any, Any, Any]) -> TenantAnswer:
    tenant = decode_tenant(await request.body(), tenant_id_of(tenant_id))
    await rest.do(SetTenant(tenant=tenant))
    return await _tenant(rest, tenant.id)


@delete(
    "/api/v1/tenants/{tenant_id:str}",
    summary="Remove a tenant",
    description="A tenant without waiting or running tasks.",
    status_code=200,
)
async def remove_tenant(rest: Given, tenant_id: TenantIdText) -> Removed:
    await rest.do(RemoveTenant(tenant_id=tenant_id_of(tenant_id)))
    return Removed(id=tenant_id)


async def _tenant(rest: Backend, tenant_id: TenantId) -> TenantAnswer:
    def look(state: ClusterState) -> TenantAnswer | None:
        tenant = state.tenants.get(tenant_id)
        return None if tenant is None else tenant_answer(state, tenant, _now(rest, state))

    answer = await rest.runtime.read(look)
    if answer is None:
        raise ProblemError(problem_of(UnknownTenant(tenant_id=tenant_id)))
    return answer


def _now(rest: Backend, state: ClusterState) -> int:
    return max(state.last_at, rest.runtime.now_ms())


ROUTES: tuple[Any, ...] = (list_tenants, get_tenant, create_tenant, set_tenant, remove_tenant)
