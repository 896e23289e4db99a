"""Links that open a port of a task in a browser, on a host of its own."""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import Request, post

from dgpu.core.model.ids import TaskId, task_name
from dgpu.core.model.task import TaskDetail, TaskStatus
from dgpu.core.state import ClusterState
from dgpu.service.proxy.app import Proxy
from dgpu.service.proxy.entry import LINK_SECONDS
from dgpu.service.proxy.names import Target, TaskPort
from dgpu.service.rest import listing
from dgpu.service.rest.backend import Backend, ProblemError
from dgpu.service.rest.failures import Peer
from dgpu.service.rest.origins import problem
from dgpu.service.rest.tasks import Given, TaskIdText, Who
from dgpu.wire.address import is_loopback
from dgpu.wire.answers import Problem
from dgpu.wire.link_answers import PortLink
from dgpu.wire.link_requests import LinkRequest, decode_link

_decode_detail = msgspec.json.Decoder(TaskDetail).decode


@post(
    "/api/v1/tasks/{task_id:str}/links",
    summary="A link to a port of a task",
    description="`url` opens the port in a browser, on a host of its own and through the scheduler and the agent. It "
    "works once, within 5 minutes; then the browser has a cookie for this host, for a day. `port`: without it, the "
    "first port that the task asked for. `path`: the page to open. 409 if the task does not run.",
    status_code=201,
)
async def make_link(rest: Given, who: Who, task_id: TaskIdText, request: Request[Any, Any, Any]) -> PortLink:
    number = listing.task_id_of(task_id)
    asked = decode_link(await request.body())
    proxy = proxy_of(rest, request)
    found = await rest.runtime.read(lambda state: _port_of(state, number, asked))
    if isinstance(found, Problem):
        raise ProblemError(found)
    if found is None:
        await listing.find_task(rest, who, number)  # raises unless it has ended and is forgotten
        raise ProblemError(_not_running(number, "has ended"))
    return link_to(proxy, who, found, asked.path)


def link_to(proxy: Proxy, who: Any, target: Target, path: str) -> PortLink:
    entrance = proxy.entry.new_link(who, proxy.site.host_of(target), path)
    return PortLink(
        url=proxy.site.url_of(target, entrance),
        address=proxy.site.url_of(target, path),
        expires_in_seconds=LINK_SECONDS,
    )


def proxy_of(rest: Backend, request: Request[Any, Any, Any]) -> Proxy:
    proxy = rest.proxy
    if proxy is None:
        detail = "This scheduler has no proxy (server.proxy_address: off). Use dgpu forward."
        raise ProblemError(problem(409, "no_proxy", "No proxy", detail))
    peer: Peer = request.scope["state"].get("peer", Peer(uid=None, address="127.0.0.1"))
    if proxy.site.is_local and peer.address and not is_loopback(peer.address):
        detail = (
            "The proxy has names below localhost, which only browsers on the scheduler's machine can open. Use dgpu "
            "forward, or set server.proxy_url (docs/services.md)."
        )
        raise ProblemError(problem(409, "proxy_local", "The proxy is local", detail))
    return proxy


def _port_of(state: ClusterState, task_id: TaskId, asked: LinkRequest) -> TaskPort | Problem | None:
    """None: the state does not know the task."""
    task = state.tasks.get(task_id)
    if task is None:
        return None
    if task.status.is_final:
        return _not_running(task_id, f"has ended ({task.status.value})")
    if task.status is TaskStatus.PENDING:
        return _not_running(task_id, f"waits; see: dgpu why {task_name(task_id)}")
    port = asked.port or next(iter(_decode_detail(task.detail).ports), None)
    if port is None:
        detail = (
            f"{task_name(task_id)} was submitted without --port. Name the port that its program listens on."
        )
        facts = {"task_id": task_name(task_id)}
        return Problem(status=409, code="no_port", title="No port", detail=detail, facts=facts)
    return TaskPort(task_id, port, asked.rank)


def _not_running(task_id: TaskId, why: str) -> Problem:
    facts = {"task_id": task_name(task_id)}
    detail = f"{task_name(task_id)} {why}."
    return Problem(status=409, code="not_running", title="Not running", detail=detail, facts=facts)


ROUTES: tuple[Any, ...] = (make_link,)
