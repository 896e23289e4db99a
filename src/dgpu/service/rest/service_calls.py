"""The calls on services: equal tasks behind one address."""

from __future__ import annotations

from typing import Annotated, Any

from litestar import Request, delete, get, post, put
from litestar.params import PathParameter, QueryParameter

from dgpu.core.commands import DeleteService, ScaleService, SetService
from dgpu.core.model.ids import TenantId, task_name
from dgpu.core.model.service import STALLED, Replica, Service, service_id
from dgpu.core.model.task import Task, TaskStatus
from dgpu.core.rejections import UnknownService
from dgpu.core.state import ClusterState
from dgpu.service.access.principal import Principal
from dgpu.service.access.table import Action, may
from dgpu.service.proxy.app import Proxy
from dgpu.service.proxy.names import MAX_LABEL_CHARS, ServiceHost
from dgpu.service.proxy.routes import routes_of
from dgpu.service.rest.attempt import note_tenant
from dgpu.service.rest.backend import Backend, ProblemError
from dgpu.service.rest.grace_limit import refuse_long_grace
from dgpu.service.rest.known_uploads import refuse_unknown_uploads
from dgpu.service.rest.link_calls import link_to, proxy_of
from dgpu.service.rest.notify_check import refuse_unknown_targets
from dgpu.service.rest.ownership import refuse_foreign_entries, refuse_userless_entries, submitter_of
from dgpu.service.rest.tasks import Given, Who
from dgpu.wire.answers import Removed, instant
from dgpu.wire.fields import Unacceptable
from dgpu.wire.link_answers import PortLink
from dgpu.wire.link_requests import decode_link
from dgpu.wire.problem import problem_of
from dgpu.wire.requests import field_error, invalid
from dgpu.wire.service_answers import ReplicaAnswer, ServiceAnswer, ServiceList, ServiceNote
from dgpu.wire.service_requests import A_NAME, check_name, decode_scale, decode_service
from dgpu.wire.task_fields import DEFAULT_TENANT
from dgpu.wire.tenant_fields import tenant_id_of

ServiceName = Annotated[str, PathParameter(description=f"The service's name: {A_NAME}.")]
TenantOf = Annotated[
    str | None,
    QueryParameter(description="The tenant of the service; without it, your first one.", required=False),
]


@get(
    "/api/v1/services",
    summary="List services",
    description="Of your tenants, with their replicas and the last steps.",
)
async def list_services(rest: Given, who: Who) -> ServiceList:
    def read(state: ClusterState) -> list[ServiceAnswer]:
        found = [each for each in state.services.values() if may(who, Action.READ_TASK, each.tenant_id)]
        found.sort(key=lambda each: (each.tenant_id, each.name))
        return [answer_of(state, each, rest.proxy) for each in found]

    services = await rest.runtime.read(read)
    return ServiceList(total=len(services), services=services)


@get(
    "/api/v1/services/{name:str}",
    summary="Show a service",
    description="`url` is one address for all replicas. `notes` are the last steps with their causes.",
)
async def show_service(rest: Given, who: Who, name: ServiceName, tenant_id: TenantOf = None) -> ServiceAnswer:
    return await _shown(rest, _tenant_of(who, tenant_id, name, Action.READ_TASK), name)


@put(
    "/api/v1/services/{name:str}",
    summary="Create or change a service",
    description="`task` is the task of each replica, as in a submit; `port` the port of its program ($DGPU_PORT). "
    "`replicas`, or `min_replicas` and `max_replicas`: more start when more than `requests_per_replica` are in "
    "progress on each. `health`: the path of a check; without it, a connection is enough. Another task is a new "
    "generation: replicas are replaced one by one when the new one is ready (`replace`: start-first or stop-first).",
    status_code=200,
)
async def set_service(
    rest: Given, who: Who, name: ServiceName, request: Request[Any, Any, Any]
) -> ServiceAnswer:
    check_name(name)
    spec = decode_service(await request.body(), name, submitter_of(who), rest.seal_env)
    entries = ((1, spec.task),)
    await refuse_foreign_entries(rest, who, entries, path="task.")
    refuse_userless_entries(rest, entries, path="task.")
    refuse_long_grace(rest, entries, path="task.")
    await refuse_unknown_uploads(rest, entries)
    await refuse_unknown_targets(rest, entries, path="task.")
    tenant = spec.task.shape.tenant_id
    note_tenant(tenant)
    if rest.proxy is not None:
        _refuse_long_host(rest.proxy, name, tenant)
    await rest.do(SetService(tenant_id=tenant, name=name, spec=spec, set_by=who.user))
    return await _shown(rest, tenant, name)


@post(
    "/api/v1/services/{name:str}/scale",
    summary="Change the number of replicas",
    description='{"replicas": 2}, or {"min_replicas": 1, "max_replicas": 4}; a limit that is not given stays. '
    "No replica is restarted.",
    status_code=200,
)
async def scale_service(
    rest: Given, who: Who, name: ServiceName, request: Request[Any, Any, Any], tenant_id: TenantOf = None
) -> ServiceAnswer:
    tenant = _tenant_of(who, tenant_id, name, Action.CHANGE_TASK)
    scale = decode_scale(await request.body())
    await rest.do(
        ScaleService(
            tenant_id=tenant,
            name=name,
            min_replicas=scale.low,
            max_replicas=scale.high,
            set_by=who.user,
        )
    )
    return await _shown(rest, tenant, name)


@post(
    "/api/v1/services/{name:str}/rollback",
    summary="Return to the generation before",
    description="Replicas of that generation that still run stay. 409 if there is none.",
    status_code=200,
)
async def roll_back_service(
    rest: Given, who: Who, name: ServiceName, tenant_id: TenantOf = None
) -> ServiceAnswer:
    tenant = _tenant_of(who, tenant_id, name, Action.CHANGE_TASK)
    known = await _found(rest, tenant, name)
    await rest.do(SetService(tenant_id=tenant, name=name, spec=known.spec, set_by=who.user, rolls_back=True))
    return await _shown(rest, tenant, name)


@post(
    "/api/v1/services/{name:str}/restart",
    summary="Restart a service",
    description="Its replicas are replaced one by one by new ones of the same task, as in a roll-out.",
    status_code=200,
)
async def restart_service(
    rest: Given, who: Who, name: ServiceName, tenant_id: TenantOf = None
) -> ServiceAnswer:
    tenant = _tenant_of(who, tenant_id, name, Action.CHANGE_TASK)
    known = await _found(rest, tenant, name)
    await rest.do(SetService(tenant_id=tenant, name=name, spec=known.spec, set_by=who.user, restarts=True))
    return await _shown(rest, tenant, name)


@post(
    "/api/v1/services/{name:str}/links",
    summary="A link to a service",
    description="As for a port of a task: `url` works once in a browser, within 5 minutes.",
    status_code=201,
)
async def link_service(
    rest: Given, who: Who, name: ServiceName, request: Request[Any, Any, Any], tenant_id: TenantOf = None
) -> PortLink:
    tenant = _tenant_of(who, tenant_id, name, Action.ENTER_TASK)
    asked = decode_link(await request.body())
    proxy = proxy_of(rest, request)
    await _found(rest, tenant, name)
    return link_to(proxy, who, ServiceHost(name, tenant.lower()), asked.path)


@delete(
    "/api/v1/services/{name:str}",
    summary="Delete a service",
    description="Its replicas are cancelled.",
    status_code=200,
)
async def delete_service(rest: Given, who: Who, name: ServiceName, tenant_id: TenantOf = None) -> Removed:
    tenant = _tenant_of(who, tenant_id, name, Action.CHANGE_TASK)
    await rest.do(DeleteService(tenant_id=tenant, name=name))
    return Removed(id=name)


def _refuse_long_host(proxy: Proxy, name: str, tenant: TenantId) -> None:
    label = proxy.site.long_label(ServiceHost(name, tenant.lower()))
    if label:
        wanted = (
            f"a shorter name: {label} has {len(label)} characters, a part of a host at most {MAX_LABEL_CHARS}"
        )
        raise invalid([field_error("name", name, Unacceptable(wanted))])


def _tenant_of(who: Principal, given: str | None, name: str, action: Action) -> TenantId:
    """For a principal without the right, the service is like one that never was."""
    check_name(name)
    own = who.tenants[0] if who.tenants else DEFAULT_TENANT
    tenant = TenantId(own) if given is None else tenant_id_of(given)
    note_tenant(tenant)
    if not may(who, action, tenant):
        raise ProblemError(problem_of(UnknownService(tenant_id=tenant, name=name)))
    return tenant


async def _found(rest: Backend, tenant_id: TenantId, name: str) -> Service:
    found = await rest.runtime.read(lambda state: state.services.get(service_id(tenant_id, name)))
    if found is None:
        raise ProblemError(problem_of(UnknownService(tenant_id=tenant_id, name=name)))
    return found


async def _shown(rest: Backend, tenant_id: TenantId, name: str) -> ServiceAnswer:
    def read(state: ClusterState) -> ServiceAnswer | None:
        service = state.services.get(service_id(tenant_id, name))
        return None if service is None else answer_of(state, service, rest.proxy)

    shown = await rest.runtime.read(read)
    if shown is None:  # also if another request has just deleted it
        raise ProblemError(problem_of(UnknownService(tenant_id=tenant_id, name=name)))
    return shown


def answer_of(state: ClusterState, service: Service, proxy: Proxy | None) -> ServiceAnswer:
    spec = service.spec
    ready = sum(each.ready and not each.leaving_at for each in service.replicas)
    routes = {route.task_id: route for route in routes_of(state, service, ready=False)}

    def replica(each: Replica) -> ReplicaAnswer:
        task = state.tasks.get(each.task_id)
        route = routes.get(each.task_id)
        return ReplicaAnswer(
            task_id=task_name(each.task_id),
            generation=each.generation,
            status=_replica_status(each, task),
            node=None if task is None else task.node_id,
            since=instant(each.since),
            requests=0 if proxy is None or route is None else proxy.requests_of(route),
        )

    return ServiceAnswer(
        name=service.name,
        tenant_id=service.tenant_id,
        status=_status(service, ready),
        url=None
        if proxy is None
        else proxy.site.url_of(ServiceHost(service.name, service.tenant_id.lower())),
        generation=service.generation,
        previous_generation=service.previous_generation if service.previous is not None else None,
        port=spec.port,
        health=spec.health,
        replicas=[replica(each) for each in service.replicas],
        ready=ready,
        wanted=service.wanted,
        min_replicas=spec.min_replicas,
        max_replicas=spec.max_replicas,
        requests_per_replica=spec.requests,
        requests=0 if proxy is None else proxy.in_flight[service.id],
        set_by=service.set_by,
        notes=[ServiceNote(at=instant(at), text=text) for at, text in service.notes],
    )


def _replica_status(replica: Replica, task: Task | None) -> str:
    if replica.leaving_at:
        return "leaving"
    if replica.ready:
        return "ready"
    if task is None or task.status is not TaskStatus.RUNNING:
        return "waiting"
    return "not ready" if replica.was_ready else "starting"


def _status(service: Service, ready: int) -> str:
    if service.status == STALLED:
        return STALLED
    if not service.wanted:
        return "stopped"
    if any(each.generation != service.generation for each in service.replicas if not each.leaving_at):
        return "rolling"
    if ready >= service.wanted:
        return "ready"
    return "degraded" if ready else "starting"


ROUTES: tuple[Any, ...] = (
    list_services,
    show_service,
    set_service,
    scale_service,
    roll_back_service,
    restart_service,
    link_service,
    delete_service,
)
