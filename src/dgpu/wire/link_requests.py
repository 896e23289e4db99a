"""Decodes the request for a link to a port of a task."""

from __future__ import annotations

from typing import Any

import msgspec

from dgpu.core.model.gang import MAX_NODES
from dgpu.wire import fields
from dgpu.wire.fields import Check, Unacceptable
from dgpu.wire.json_body import BadRequest, parse_json
from dgpu.wire.object_fields import checked
from dgpu.wire.port_fields import port

MAX_PATH_CHARS = 2_000


class LinkRequest(msgspec.Struct, frozen=True, kw_only=True):
    port: int | None = None  # None: the first port that the task asked for
    rank: int = 0
    path: str = "/"


def decode_link(body: bytes) -> LinkRequest:
    raw = parse_json(body) if body else {}
    if type(raw) is not dict:
        raise BadRequest("malformed_request", 'Expected an object like {"port": 8888} or {}.')
    return LinkRequest(**checked(raw, _CHECKS))


def _path(value: Any) -> str:
    # Two slashes would name another host.
    is_path = type(value) is str and value.startswith("/") and not value.startswith(("//", "/\\"))
    if not is_path or len(value) > MAX_PATH_CHARS or not value.isascii() or not value.isprintable():
        raise Unacceptable(f"a path like /lab?token=x, at most {MAX_PATH_CHARS} characters of ASCII")
    return str(value)


_CHECKS: dict[str, Check] = {"port": port, "rank": fields.whole(0, MAX_NODES - 1), "path": _path}
