"""Logs each request and its result in one line: with the request's id, the tasks it created, the cause of a refusal.

Lines contain no header, no query and no body, because those may be private. Above a rate, one line covers many
requests.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import structlog

LINES_PER_SECOND = 20  # of one name and level: many reads must not crowd out one change
_SANE_ID = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._:-]{0,63}")
_READING = frozenset({"GET", "HEAD", "OPTIONS"})
_MAX_BODY = 256 << 10
_MAX_PATH = 200

_log = structlog.get_logger("dgpu.rest")
_std = logging.getLogger("dgpu.rest")

Scope = Any
Receive = Any
Send = Any
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class _Told(msgspec.Struct):
    """The fields that a line takes from an answer: the created tasks, or the cause of a refusal."""

    task_id: str = ""
    task_ids: list[str] = []
    count: int = 1
    code: str = ""


_decoder = msgspec.json.Decoder(_Told)


class RequestLog:
    """Wraps the whole application. It gives every request an id: the client's own, if that is valid."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._start = secrets.token_hex(4)
        self._numbers = itertools.count(1)
        self._lines: dict[tuple[int, str], int] = {}  # logged in this second
        self._held: dict[tuple[int, str], int] = {}  # only counted in this second
        self._second = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope.setdefault("state", {})["request_id"] = request_id = self._id_of(scope["headers"])
        began_s = time.perf_counter()
        status = 0
        body = b""

        async def noting(message: Any) -> None:
            nonlocal status, body
            if message["type"] == "http.response.start":
                status = message["status"]
            elif not body:
                body = message.get("body", b"")
            await send(message)

        try:
            await self._app(scope, receive, noting)
        finally:
            level = logging.DEBUG if _asks_for_master(scope) else _level(scope["method"], status)
            if _std.isEnabledFor(level):
                took_ms = round((time.perf_counter() - began_s) * 1_000, 1)
                self._tell(level, scope, request_id, status, body, took_ms)

    def _id_of(self, headers: list[tuple[bytes, bytes]]) -> str:
        for name, value in headers:
            if name == b"x-request-id" and _SANE_ID.fullmatch(value):
                return value.decode()
        return f"{self._start}-{next(self._numbers):x}"

    def _tell(
        self, level: int, scope: Scope, request_id: str, status: int, body: bytes, took_ms: float
    ) -> None:
        name = "request_refused" if status >= 400 else "request_done"
        if not self._may_tell((level, name)):
            return
        _log.log(
            level,
            name,
            request_id=request_id,
            method=scope["method"],
            path=scope["path"][:_MAX_PATH],
            status=status,
            ms=took_ms,
            **_facts(scope["method"], status, body),
        )

    def _may_tell(self, kind: tuple[int, str]) -> bool:
        second = int(time.monotonic())
        if second != self._second:
            self._second = second
            self.flush()
        told = self._lines[kind] = self._lines.get(kind, 0) + 1
        if told <= LINES_PER_SECOND:
            return True
        if not self._held:
            asyncio.get_running_loop().call_later(1.0, self.flush)
        self._held[kind] = self._held.get(kind, 0) + 1
        return False

    def flush(self) -> None:
        self._lines.clear()
        held, self._held = self._held, {}
        for (level, name), count in held.items():
            _log.log(level, name, count=count, summary="more in the same second")


def _asks_for_master(scope: Scope) -> bool:
    """A load balancer asks all schedulers, several times a second. A standby that refuses is no event."""
    return scope["path"] == "/ready" and b"role=master" in scope.get("query_string", b"")


def _level(method: str, status: int) -> int:
    if status >= 500:
        return logging.WARNING
    return logging.DEBUG if method in _READING and status < 400 else logging.INFO


def _facts(method: str, status: int, body: bytes) -> dict[str, Any]:
    if len(body) > _MAX_BODY or (method in _READING and status < 400):
        return {}
    try:
        told = _decoder.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return {}
    if told.code and status >= 400:
        return {"cause": told.code}
    if told.task_ids:
        return {"first": told.task_ids[0], "count": len(told.task_ids)}
    if not told.task_id:
        return {}
    return {"task": told.task_id} if told.count == 1 else {"first": told.task_id, "count": told.count}
