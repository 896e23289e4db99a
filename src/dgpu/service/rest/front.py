"""The first code that sees a request: checks access, answers hot calls, and sets the same headers on every answer."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import parse_qsl

import msgspec
import structlog

from dgpu.service.access.operations import FIXED
from dgpu.service.access.principal import STRANGER, Principal
from dgpu.service.access.table import refusal
from dgpu.service.history.reader import HistoryDamaged, HistoryUnfinished
from dgpu.service.metrics.text import CONTENT_TYPE as METRICS_TYPE
from dgpu.service.rest import board_calls, listing, probes, session_calls, submit, task_list
from dgpu.service.rest.access import OPEN_PATHS, SESSION_ENDED, Access
from dgpu.service.rest.backend import Backend, ProblemError
from dgpu.service.rest.doors import Guest
from dgpu.service.rest.failures import Peer
from dgpu.service.rest.methods import methods_before_frame, methods_of_frame
from dgpu.service.rest.origins import repeated_host, wrong_content
from dgpu.service.rest.pages import Page, Pages
from dgpu.service.rest.roles import of_lost_leadership, refused_by_role, telling_role
from dgpu.service.rest.turns import is_large
from dgpu.service.rest.turnstile import lane_of
from dgpu.wire.answers import PROBLEM_JSON, Problem
from dgpu.wire.json_body import BadRequest
from dgpu.wire.problem import problem_of_bad_request

Scope = Any
Receive = Any
Send = Any
App = Callable[[Scope, Receive, Send], Awaitable[None]]
HotCall = Callable[[Backend, Principal, dict[bytes, bytes], Receive], Awaitable[bytes]]

HOT_CALLS: dict[str, HotCall] = {
    "/api/v1/tasks": submit.submit_task,
    "/api/v1/tasks/batch": submit.submit_batch,
    "/api/tasks": submit.submit_task_of_workstation,
}
_PROBES: dict[str, Callable[[Backend, bytes], Awaitable[tuple[int, Any]]]] = {
    "/health": probes.health,
    "/ready": probes.readiness,
}
_ONLY_POST = frozenset({"/api/v1/tasks/batch", "/api/tasks"})
_SAFETY_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (
        b"content-security-policy",
        b"default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'; base-uri 'none'",
    ),
]
_MAX_QUERY = 1_000  # longer queries are not examined
_NOBODY = Peer(uid=None)
_log = structlog.get_logger("dgpu.rest")


class Front:
    def __init__(self, backend: Backend, access: Access, rest: App, pages: Pages | None = None) -> None:
        self._backend = backend
        self._access = access
        self._rest = rest
        self._pages = Pages() if pages is None else pages
        self._standing = None if backend.options.standing.is_lone else backend.options.standing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        if self._standing is not None:
            send = telling_role(self._standing, send)
        request_id = scope["state"]["request_id"]
        headers: dict[bytes, bytes] = dict(scope["headers"])
        method, path = scope["method"], scope["path"]
        # Pages contain nothing secret, and a user who opens them has no token yet.
        page = None if path.startswith("/api") else self._pages.find(method, path, headers)
        if page is None:
            await self._access.prepare(headers, scope["state"].get("peer", _NOBODY))
        who = repeated_host(scope["headers"]) or (
            self._enter(scope, headers) if page is None else self._access.hosts.wrong(headers)
        )
        if isinstance(who, Problem):
            await send_problem(send, who, request_id, self._headers_of(who, headers))
        elif page is not None:
            await _send_page(send, page, method, request_id)
        else:
            scope["state"]["principal"] = who or STRANGER
            if path not in OPEN_PATHS:
                await self._backend.turnstile.enter(lane_of(who or STRANGER))
            await self._route(scope, headers, receive, send, request_id)

    def _enter(self, scope: Scope, headers: dict[bytes, bytes]) -> Principal | Problem:
        """The principal, if it may make this call. Calls of the frame that name a task or a node are checked there."""
        method, path = scope["method"], scope["path"]
        who = self._access.enter(method, path, headers, scope["state"].get("peer", _NOBODY))
        if isinstance(who, Problem):
            return who
        scope["state"]["principal"] = who  # also of a refusal, for the audit log
        if path not in OPEN_PATHS:
            _note_admitted(scope)
        action = FIXED.get((method, path.rstrip("/")))
        refused = None if action is None else refusal(who, action)
        if refused is None and self._standing is not None:
            refused = refused_by_role(self._standing, method, path)
        return refused or who

    def _headers_of(self, refused: Problem, headers: dict[bytes, bytes]) -> dict[str, str]:
        told = _headers_of(refused)
        if refused.code == SESSION_ENDED:  # the browser forgets it: whoever needs no session gets in without
            told["set-cookie"] = self._access.sessions.set_cookie(headers, "").decode()
        return told

    async def _route(
        self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send, request_id: str
    ) -> None:
        method, path = scope["method"], scope["path"]
        if method == "OPTIONS":
            await self._options(scope, receive, send, request_id)
        elif method == "POST" and (call := HOT_CALLS.get(path.rstrip("/"))) is not None:
            await self._hot(call, scope, headers, receive, send)
        elif method in {"GET", "HEAD"} and (probe := _PROBES.get(path)) is not None:
            await self._probe(probe(self._backend, scope["query_string"]), send, request_id)
        elif method in {"GET", "HEAD"} and path == "/metrics":
            answering = self._backend.scrapes.answer(scope["state"]["principal"], scope["query_string"])
            await self._answer(answering, send, request_id, METRICS_TYPE)
        elif method == "GET" and path == task_list.PATH:
            await self._answer(self._task_list(scope), send, request_id)
        elif path in board_calls.PATHS or path in session_calls.PATHS:
            await self._unframed(scope, headers, receive, send, request_id)
        elif path.rstrip("/") in _ONLY_POST:
            await send_problem(send, wrong_method(method, path), request_id, {"allow": "POST"})
        elif path.startswith("/schema"):  # the frame's own pages, which are not part of dgpu
            await send_problem(send, no_such_call(path), request_id, {})
        else:
            await self._framed(scope, receive, send, request_id)

    async def _options(self, scope: Scope, receive: Receive, send: Send, request_id: str) -> None:
        path = scope["path"]
        allowed = methods_before_frame(path, self._pages, _ONLY_POST)
        if allowed is None and not path.startswith("/schema"):
            allowed = await methods_of_frame(self._rest, scope, receive)
        if allowed is None:
            await send_problem(send, no_such_call(path), request_id, {})
            return
        named = dict.fromkeys(word.strip() for word in f"{allowed}, OPTIONS".split(",") if word.strip())
        headers = [(b"allow", ", ".join(named).encode()), (b"x-request-id", request_id.encode())]
        await _answer(send, 204, b"", [*headers, *_SAFETY_HEADERS[:2]])

    async def _hot(
        self, call: HotCall, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send
    ) -> None:
        request_id = scope["state"]["request_id"]
        try:
            refuse_content("POST", headers)
            _refuse_queries(scope["query_string"])
            body = await call(self._backend, scope["state"]["principal"], headers, receive)
        except ConnectionResetError:
            return
        except Exception as error:  # noqa: BLE001 - every failure has to become an answer
            problem, extra = problem_for(error, request_id, self._backend)
            await send_problem(send, problem, request_id, extra)
            return
        await self._send(send, 201, body, request_id)

    async def _probe(self, probing: Awaitable[tuple[int, Any]], send: Send, request_id: str) -> None:
        try:
            status, answer = await probing
        except BadRequest as error:
            await send_problem(send, problem_of_bad_request(error), request_id, {})
            return
        await self._send(send, status, msgspec.json.encode(answer), request_id)

    async def _task_list(self, scope: Scope) -> bytes:
        query = scope["query_string"]
        if not is_large("GET", task_list.PATH, query):
            return await task_list.answer(self._backend, scope["state"]["principal"], query)
        async with self._backend.turns.one(_is_gone(scope)):
            return await task_list.answer(self._backend, scope["state"]["principal"], query)

    async def _answer(
        self, answering: Awaitable[bytes], send: Send, request_id: str, kind: bytes = b"application/json"
    ) -> None:
        try:
            body = await answering
        except ConnectionResetError:
            return
        except Exception as error:  # noqa: BLE001 - every failure has to become an answer
            problem, extra = problem_for(error, request_id, self._backend)
            await send_problem(send, problem, request_id, extra)
            return
        await self._send(send, 200, body, request_id, kind)

    async def _unframed(
        self,
        scope: Scope,
        headers: dict[bytes, bytes],
        receive: Receive,
        send: Send,
        request_id: str,
    ) -> None:
        """Boards and sessions: the first requests of a browser, so they do not wait for the frame."""
        method, path = scope["method"], scope["path"]
        told = [(b"x-request-id", request_id.encode()), *_SAFETY_HEADERS[:2]]
        answered: tuple[int, bytes, list[tuple[bytes, bytes]]] | None
        try:
            _refuse_queries(scope["query_string"])
            if path in session_calls.PATHS:
                if method in session_calls.ALLOWED[path]:
                    refuse_content(method, headers)
                answered = await session_calls.answer(self._access, scope, headers, receive)
                allowed = session_calls.ALLOWED[path]
            elif method == "GET" and path == board_calls.STREAM_PATH:
                await board_calls.stream(self._backend, scope, headers, told, receive, send)
                return
            else:
                who = scope["state"]["principal"]
                answered = await board_calls.answer(self._backend, who, method, path, headers)
                allowed = "GET"
        except ConnectionResetError:
            return
        except Exception as error:  # noqa: BLE001 - every failure has to become an answer
            problem, extra = problem_for(error, request_id, self._backend)
            await send_problem(send, problem, request_id, extra)
            return
        if answered is None:
            await send_problem(send, wrong_method(method, path), request_id, {"allow": allowed})
            return
        status, body, extra_headers = answered
        await _answer(send, status, body, [*told, *extra_headers])

    async def _send(
        self, send: Send, status: int, body: bytes, request_id: str, kind: bytes = b"application/json"
    ) -> None:
        headers = [
            (b"content-type", kind),
            (b"content-length", b"%d" % len(body)),
            (b"x-request-id", request_id.encode()),
            *_SAFETY_HEADERS[:2],  # the others are for pages
        ]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _framed(self, scope: Scope, receive: Receive, send: Send, request_id: str) -> None:
        scope["state"] = {**scope.get("state", {}), "request_id": request_id}
        started = False
        turn = contextlib.AsyncExitStack()

        async def send_with_headers(message: Any) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                await turn.aclose()  # the answer is complete; a slow client must not hold its turn
                extra = [(b"x-request-id", request_id.encode()), *_SAFETY_HEADERS]
                message = {**message, "headers": [*message.get("headers", ()), *extra]}
            await send(message)

        try:
            if is_large(scope["method"], scope["path"], scope["query_string"]):
                await turn.enter_async_context(self._backend.turns.one(_is_gone(scope)))
            await self._rest(scope, receive, send_with_headers)
        except ConnectionResetError:
            if started:
                raise
        except Exception as error:  # a failure of the frame itself
            if started:
                raise
            problem, extra = problem_for(error, request_id, self._backend)
            await send_problem(send, problem, request_id, extra)
        finally:
            await turn.aclose()


def _note_admitted(scope: Scope) -> None:
    guest: Guest | None = scope["state"].get("guest")
    if guest is not None:
        guest.admitted()


def _is_gone(scope: Scope) -> Callable[[], bool]:
    guest: Guest | None = scope["state"].get("guest")
    return lambda: guest is not None and guest.is_gone


async def _answer(
    send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]], *, head: bool = False
) -> None:
    length = [] if status in {204, 304} else [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": [*length, *headers]})
    await send({"type": "http.response.body", "body": b"" if head else body})


async def _send_page(send: Send, page: Page, method: str, request_id: str) -> None:
    headers = [(b"x-request-id", request_id.encode()), *page.headers]
    await _answer(send, page.status, page.body, headers, head=method == "HEAD")


def problem_for(
    error: BaseException, request_id: str, backend: Backend | None = None
) -> tuple[Problem, dict[str, str]]:
    """The problem in the words of the API. An internal error is logged; the answer gives only the id of the request."""
    if isinstance(error, BadRequest):
        return problem_of_bad_request(error), {}
    if isinstance(error, ProblemError):
        return error.problem, {**_headers_of(error.problem), **error.headers}
    if backend is not None and (lost := of_lost_leadership(error, backend.options.standing)) is not None:
        return lost, _headers_of(lost)
    if isinstance(error, HistoryDamaged):
        if not isinstance(error, HistoryUnfinished):  # known already, and requested repeatedly
            _log.error("history_damaged", request_id=request_id, error=str(error))
        detail = (
            "The history file was damaged and is being rebuilt from the journal. "
            "Tasks are safe. Try again soon."
        )
        problem = Problem(status=503, title="Not available now", code="history_damaged", detail=detail)
        return problem, _headers_of(problem)
    _log.error("request_failed", request_id=request_id, error=type(error).__name__, exc_info=error)
    detail = "An internal error of the scheduler. Its log has the request's id."
    return Problem(status=500, title="Internal error", code="internal_error", detail=detail), {}


def no_such_call(path: str) -> Problem:
    detail = f"There is no {path[:200]!r} here. /docs lists all calls."
    facts = {"path": path[:200]}
    return Problem(status=404, title="No such call", code="unknown_call", detail=detail, facts=facts)


def wrong_method(method: str, path: str) -> Problem:
    detail = f"{method} is not possible on {path[:200]!r}."
    facts = {"method": method, "path": path[:200]}
    return Problem(
        status=405, title="Method not allowed", code="method_not_allowed", detail=detail, facts=facts
    )


def refuse_content(method: str, headers: dict[bytes, bytes]) -> None:
    refused = wrong_content(method, headers)
    if refused is not None:
        raise ProblemError(refused)


def _refuse_queries(query: bytes) -> None:
    """These calls take no queries. The frame checks its own."""
    given = parse_qsl(query[:_MAX_QUERY].decode("latin-1"), keep_blank_values=True)
    listing.refuse_queries([name for name, _ in given], ())


def _headers_of(problem: Problem) -> dict[str, str]:
    if problem.status == 401:
        return {"www-authenticate": 'Bearer realm="dgpu"'}
    if problem.status in {429, 503}:
        return {"retry-after": "60" if problem.code == "too_many_failures" else "1"}
    return {}


async def send_problem(send: Send, problem: Problem, request_id: str, extra: dict[str, str]) -> None:
    body = msgspec.json.encode(msgspec.structs.replace(problem, request_id=request_id))
    headers = [
        (b"content-type", PROBLEM_JSON.encode()),
        (b"content-length", b"%d" % len(body)),
        (b"x-request-id", request_id.encode()),
        *_SAFETY_HEADERS,
        *((name.encode(), value.encode()) for name, value in extra.items()),
    ]
    await send({"type": "http.response.start", "status": problem.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
