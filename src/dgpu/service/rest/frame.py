"""Most calls use Litestar. Its import takes longer than the recovery of a day's work, so it is loaded later, in a
thread.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec
from litestar import Litestar, Request, Response
from litestar.connection import ASGIConnection
from litestar.di import Provide
from litestar.exceptions import HTTPException
from litestar.handlers import BaseRouteHandler
from litestar.openapi.config import OpenAPIConfig
from litestar.plugins import PluginProtocol
from litestar.plugins.core import MsgspecDIPlugin
from litestar.types import Scope

from dgpu.service.access.operations import OPEN_OPERATIONS, OPERATIONS
from dgpu.service.access.principal import Principal
from dgpu.service.access.table import Action, refusal
from dgpu.service.rest import (
    again,
    alerts,
    audit_calls,
    channel_calls,
    cluster,
    describe,
    estimates,
    files,
    history_calls,
    link_calls,
    listing,
    monitor,
    quota,
    results,
    secrets,
    service_calls,
    streams,
    tasks,
    tenants,
    tokens,
    uploads,
    waiting,
    whatif,
)
from dgpu.service.rest.arrays import resolve_path
from dgpu.service.rest.backend import Backend, ProblemError
from dgpu.service.rest.front import HOT_CALLS, App, no_such_call, problem_for, refuse_content, wrong_method
from dgpu.service.rest.open_streams import OpenStream
from dgpu.service.rest.ownership import refuse_foreign
from dgpu.service.rest.submit import too_large
from dgpu.wire.answers import PROBLEM_JSON, Problem
from dgpu.wire.requests import MAX_BODY_BYTES

ELEMENT = "element"  # of the state of a request: its path named one task of an array, like 46_3

_PARTS = (
    tasks,
    again,
    cluster,
    quota,
    tenants,
    tokens,
    secrets,
    streams,
    files,
    results,
    uploads,
    channel_calls,
    link_calls,
    service_calls,
    waiting,
    estimates,
    whatif,
    alerts,
    monitor,
    history_calls,
    audit_calls,
    describe,
)


def make_frame(backend: Backend) -> App:
    frame = _litestar(backend)
    backend.describe_with(lambda: describe.complete(frame.openapi_schema.to_schema()))
    return frame


class _Lean(Litestar):
    """Without the plugins for other installed libraries: their import takes a tenth of the start."""

    @staticmethod
    def _get_default_plugins(plugins: list[PluginProtocol]) -> list[PluginProtocol]:
        return [*plugins, MsgspecDIPlugin()]


def _litestar(backend: Backend) -> Litestar:
    routes = [route for part in _PARTS for route in part.ROUTES]
    for route in routes:
        route.opt["action"] = _action_of(route)

    async def only_permitted(
        connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler
    ) -> None:
        await check_permitted(backend, connection, handler)

    def opener(scope: Scope) -> Callable[[], OpenStream]:
        return lambda: backend.open_stream(_principal(scope), scope["state"].get("guest"))

    def answer(request: Request[Any, Any, Any], error: Exception) -> Response[Any]:
        return answer_with_problem(request, error, backend)

    return _Lean(
        route_handlers=routes,
        dependencies={
            "rest": Provide(lambda: backend, sync_to_thread=False),
            "who": Provide(_principal, sync_to_thread=False),
            "opener": Provide(opener, sync_to_thread=False),
            "element": Provide(_is_element, sync_to_thread=False),
        },
        guards=[only_permitted, only_json_bodies, only_known_queries],
        exception_handlers={Exception: answer},
        openapi_config=OpenAPIConfig(title=describe.TITLE, version=backend.options.version, path="/schema"),
        request_max_body_size=MAX_BODY_BYTES,
        logging_config=None,
    )


def _action_of(route: Any) -> Action | None:
    """None: an open call. KeyError: a call without a row in the table of operations."""
    (method,) = route.http_methods - {"OPTIONS", "HEAD"} or {"GET"}  # HEAD needs the right to GET
    (path,) = route.paths
    name = f"{method} {re.sub(':[a-z]+}', '}', path)}"
    return None if name in OPEN_OPERATIONS else OPERATIONS[name]


def _principal(scope: Scope) -> Principal:
    found: Principal = scope["state"]["principal"]
    return found


def _is_element(scope: Scope) -> bool:
    return bool(scope["state"][ELEMENT])


async def check_permitted(
    backend: Backend, connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler
) -> None:
    """Before anything of the request is looked at, so that a task of another tenant is like one that never was."""
    action: Action | None = handler.opt["action"]
    if action is None:
        return
    who = _principal(connection.scope)
    refused = refusal(who, action)
    if refused is not None:
        raise ProblemError(refused)
    resolved = await resolve_path(backend, who, action, connection.path_params)
    connection.scope["state"][ELEMENT] = resolved is not connection.path_params
    connection.scope["path_params"] = resolved  # the frame reuses the old one for later requests
    await refuse_foreign(backend, who, action, resolved)


def only_json_bodies(connection: Any, handler: BaseRouteHandler) -> None:
    """Checked before any part of the body is read."""
    if handler.opt.get("raw_body") and connection.scope["method"] == "PUT":
        return  # no form can send a PUT
    refuse_content(connection.scope["method"], dict(connection.scope["headers"]))


def only_known_queries(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    shared = handler.resolve_dependencies()  # a function that several calls share may read queries, too
    own = shared.keys() & handler.parsed_fn_signature.parameters.keys()
    known = {
        # The frame reserves the name `state`: such a query has another name in the function.
        getattr(field.kwarg_definition, "name", None) or name
        for signature in (
            handler.parsed_fn_signature,
            *(shared[each].parsed_fn_signature for each in sorted(own)),
        )
        for name, field in signature.parameters.items()
    }
    given = [name for name, _ in connection.query_params.multi_items()]
    listing.refuse_queries(given, known - shared.keys() - {"request", "scope"})


def answer_with_problem(
    request: Request[Any, Any, Any], error: Exception, backend: Backend | None = None
) -> Response[Any]:
    request_id = request.scope.get("state", {}).get("request_id", "")
    if isinstance(error, HTTPException):
        problem, headers = _of_framework(request, error)
    else:
        problem, headers = problem_for(error, request_id, backend)
    return Response(
        msgspec.structs.replace(problem, request_id=request_id),
        status_code=problem.status,
        media_type=PROBLEM_JSON,
        headers=headers,
    )


def _of_framework(request: Request[Any, Any, Any], error: HTTPException) -> tuple[Problem, dict[str, str]]:
    path = request.scope["path"]
    headers = dict(error.headers or {})
    if error.status_code == 404:
        return no_such_call(path), headers
    if error.status_code == 405:
        if path.rstrip("/") in HOT_CALLS:
            headers["allow"] = f"{headers.get('allow', '')}, POST"
        return wrong_method(request.method, path), headers
    if error.status_code == 413:
        return too_large(MAX_BODY_BYTES).problem, headers
    problem = Problem(
        status=error.status_code, title="Bad request", code="bad_request", detail=str(error.detail)
    )
    return problem, headers
