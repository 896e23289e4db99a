"""OPTIONS: the methods of a call. Most calls belong to the frame; some never reach it."""

from __future__ import annotations

from typing import Any

from dgpu.service.rest import board_calls, probes, session_calls
from dgpu.service.rest.pages import Pages

READ = "GET, HEAD"
_NO_METHOD = "DGPU-OPTIONS"  # no call has it, so the frame answers 405 with the call's methods


def methods_before_frame(path: str, pages: Pages, only_post: frozenset[str]) -> str | None:
    """None: the frame knows the methods."""
    if path in session_calls.ALLOWED:
        return session_calls.ALLOWED[path]
    if path in board_calls.PATHS:
        return "GET"
    if path.rstrip("/") in only_post:
        return "POST"
    if path in probes.PATHS or path == "/metrics":
        return READ
    if not path.startswith("/api") and pages.find("GET", path, {}) is not None:
        return READ
    return None


async def methods_of_frame(frame: Any, scope: Any, receive: Any) -> str | None:
    """None: the frame has no such call."""
    allowed: str | None = None

    async def note(message: Any) -> None:
        nonlocal allowed
        if message["type"] == "http.response.start" and message["status"] == 405:
            headers = dict(message["headers"])
            allowed = headers.get(b"allow", b"").decode("latin-1")

    await frame({**scope, "method": _NO_METHOD}, receive, note)
    return allowed
