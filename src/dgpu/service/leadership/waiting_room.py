"""Answers while a scheduler waits for the engine at its start: it lives, and it is not ready."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from dgpu.wire.answers import PROBLEM_JSON, Health, Problem


@contextlib.asynccontextmanager
async def waiting_room(listening: socket.socket, tls: ssl.SSLContext | None, why: str) -> AsyncIterator[None]:
    from dgpu.service.rest.http_server import HttpServer

    server = HttpServer(_app(why), tls=tls)
    await server.start(listening.dup())
    try:
        yield
    finally:
        await server.stop(grace_seconds=0.2)


def _app(why: str) -> Any:
    from dgpu import __version__

    health = msgspec.json.encode(Health(status="ok", version=__version__))
    problem = Problem(
        status=503,
        code="too_stale",
        title="The engine does not answer",
        detail=f"Nothing was done: this scheduler waits for the engine of its journal ({why}). Running tasks continue.",
        facts={"why": why},
    )

    async def app(scope: Any, _receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        is_alive = scope["path"] == "/health"
        body = health if is_alive else msgspec.json.encode(problem)
        headers = [
            (b"content-type", b"application/json" if is_alive else PROBLEM_JSON.encode()),
            (b"content-length", b"%d" % len(body)),
            (b"dgpu-role", b"standby"),
            (b"retry-after", b"1"),
        ]
        await send({"type": "http.response.start", "status": 200 if is_alive else 503, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    return app
