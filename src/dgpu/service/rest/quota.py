"""The calls on the quota of the pools."""

from __future__ import annotations

from typing import Annotated, Any

from litestar import Request, get, put
from litestar.params import QueryParameter
from msgspec.structs import replace

from dgpu.core.foresight.trial import try_quota
from dgpu.core.state import ClusterState
from dgpu.service.rest.backend import Backend
from dgpu.service.rest.tasks import Given, Who
from dgpu.service.views.quota import quota_answer, quota_effect
from dgpu.wire.answers import FieldError
from dgpu.wire.cluster_answers import QuotaAnswer, QuotaEffect
from dgpu.wire.json_body import BadRequest
from dgpu.wire.tenant_fields import decode_quota

DryRunQuery = Annotated[
    str | None,
    QueryParameter(description="true: change nothing, only report the effect.", required=False),
]


@get("/api/v1/quota", summary="Show the quota", description="Use against quota, by pool and by tenant.")
async def show_quota(rest: Given, who: Who) -> QuotaAnswer:
    found = await _quota(rest)
    return replace(found, tenants=[each for each in found.tenants if who.owns(each.tenant_id)])


@put(
    "/api/v1/quota",
    summary="Change the quota",
    description="online_percent, mode and reclaim; absent fields stay. Refused with 409 if running tasks hold more "
    "than a strict quota allows. With dry_run=true the answer lists tasks that would start, wait, drain or be stopped.",
    status_code=200,
)
async def change_quota(
    rest: Given, request: Request[Any, Any, Any], dry_run: DryRunQuery = None
) -> QuotaAnswer | QuotaEffect:
    command = decode_quota(await request.body())
    if _flag("dry_run", dry_run):
        now = rest.runtime.now_ms()
        return await rest.runtime.read(
            lambda state: quota_effect(state, try_quota(state, command, max(state.last_at, now)))
        )
    await rest.do(command)
    return await _quota(rest)


async def _quota(rest: Backend) -> QuotaAnswer:
    def look(state: ClusterState) -> QuotaAnswer:
        return quota_answer(state, max(state.last_at, rest.runtime.now_ms()))

    return await rest.runtime.read(look)


def _flag(name: str, text: str | None) -> bool:
    if text in {None, "false", "true"}:
        return text == "true"
    detail = "Expected true or false."
    raise BadRequest("invalid_query", f"{name}: {detail}", errors=[FieldError(path=name, detail=detail)])


ROUTES: tuple[Any, ...] = (show_quota, change_quota)
