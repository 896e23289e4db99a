"""From the name of a host to the runs that can answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from dgpu.core.model.ids import LeaseId, NodeId, TaskId, TenantId, task_name
from dgpu.core.model.service import Replica, Service, ServiceSpec
from dgpu.core.model.task import TaskStatus
from dgpu.core.state import ClusterState
from dgpu.service.access.principal import Principal
from dgpu.service.access.table import Action, may
from dgpu.service.proxy.names import ServiceHost, Target, TaskPort
from dgpu.service.rest.origins import problem
from dgpu.wire.answers import Problem


class Route(NamedTuple):
    """One run and a port of it."""

    lease_id: LeaseId
    node_id: NodeId
    port: int
    task_id: TaskId


class Routes(NamedTuple):
    choices: tuple[Route, ...]  # the best first; the next one is used if a connection fails
    counted_as: str = ""  # the service whose requests in flight are counted


Find = Callable[[ClusterState, Principal, Target], Routes | Problem]


def find(state: ClusterState, who: Principal, target: Target) -> Routes | Problem:
    if isinstance(target, ServiceHost):
        return _service_routes(state, who, target)
    return _task_route(state, who, target)


def _service_routes(state: ClusterState, who: Principal, target: ServiceHost) -> Routes | Problem:
    service = next(
        (
            each
            for each in state.services.values()
            if each.name == target.name
            and each.tenant_id.lower() == target.tenant  # tenants may differ in capital letters only
            and may_enter(who, each.tenant_id)
        ),
        None,
    )
    if service is None:
        return _unknown(f"service {target.name} of tenant {target.tenant}")
    return Routes(tuple(routes_of(state, service)), service.id)


def routes_of(state: ClusterState, service: Service, *, ready: bool = True) -> Iterator[Route]:
    """To replicas that are ready, or to all that run."""
    return (route for route, _ in runs_of(state, service, ready=ready))


def runs_of(state: ClusterState, service: Service, *, ready: bool) -> Iterator[tuple[Route, ServiceSpec]]:
    """The same, with the specification that each replica was started with: an update may change port and check."""
    for replica in service.replicas:
        task = state.tasks.get(replica.task_id)
        lease = None if task is None else state.leases.get(task.lease_id)
        if lease is None or not lease.started or lease.ended:
            continue
        if not ready or (replica.ready and not replica.leaving_at):
            spec = _spec_of(service, replica)
            yield Route(lease.id, lease.node_id, spec.port, replica.task_id), spec


def _spec_of(service: Service, replica: Replica) -> ServiceSpec:
    """Only two are kept: replicas that are older still are about to leave."""
    if replica.generation == service.generation or service.previous is None:
        return service.spec
    return service.previous


def _task_route(state: ClusterState, who: Principal, target: TaskPort) -> Routes | Problem:
    task = state.tasks.get(target.task_id)
    name = task_name(target.task_id)
    if task is None or not may_enter(who, state.shapes[task.shape_id].tenant_id):
        return _unknown(name)
    if task.status is not TaskStatus.RUNNING or task.allocation:
        words = (
            "waits and does not run yet"
            if task.status is TaskStatus.PENDING
            else f"has ended ({task.status})"
        )
        return problem(503, "not_running", "Not running", f"{name} {words}.")
    leases = state.leases_of(task)
    lease = state.leases[leases[target.rank]] if target.rank < len(leases) else None
    if lease is None or lease.ended:
        return _unknown(f"rank {target.rank} of {name}")
    if not lease.started:
        return problem(503, "run_not_started", "Not started", f"{name} is being started. Try again soon.")
    return Routes((Route(lease.id, lease.node_id, target.port, task.id),))


def may_enter(who: Principal, tenant_id: TenantId) -> bool:
    return may(who, Action.ENTER_TASK, tenant_id)


def _unknown(what: str) -> Problem:
    """Also for a user without the right: the name of a host must not tell which tasks exist."""
    return problem(404, "unknown_host", "Nothing here", f"There is no {what} that you may reach.")
