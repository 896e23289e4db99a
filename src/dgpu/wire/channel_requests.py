"""Decodes the request for a channel to a running task."""

from __future__ import annotations

from typing import Any

import msgspec

from dgpu.core.model.gang import MAX_NODES
from dgpu.wire import fields
from dgpu.wire.answers import FieldError
from dgpu.wire.fields import Check, Unacceptable
from dgpu.wire.json_body import BadRequest, parse_json
from dgpu.wire.object_fields import checked
from dgpu.wire.port_fields import port
from dgpu.wire.requests import invalid

MAX_SIZE = 10_000
SHELL = "/bin/sh"


class ChannelRequest(msgspec.Struct, frozen=True, kw_only=True):
    command: list[str] | None = None  # None: attach to the task's terminal
    size: tuple[int, int] | None = None  # rows, columns; None: no terminal
    env: dict[str, str] = {}
    rank: int = 0
    port: int | None = None  # a connection to it instead


def decode_channel(body: bytes) -> ChannelRequest:
    raw = parse_json(body) if body else {}
    if type(raw) is not dict:
        raise BadRequest("malformed_request", 'Expected an object like {"command": ["nvidia-smi"]} or {}.')
    values = checked(raw, _CHECKS)
    if "port" in values and (other := next((name for name in values if name in _NOT_OF_PORTS), "")):
        raise invalid([FieldError(path=other, detail=f"Leave out {other} or port.")])
    return ChannelRequest(**values)


def _command(value: Any) -> list[str]:
    checked = fields.command(value)
    return [SHELL, "-c", checked] if isinstance(checked, str) else list(checked)


def _size(value: Any) -> tuple[int, int]:
    is_pair = type(value) is list and len(value) == 2 and all(type(each) is int for each in value)
    if not is_pair or not all(1 <= each <= MAX_SIZE for each in value):
        raise Unacceptable(f"rows and columns of a terminal, each 1 to {MAX_SIZE}, like [24, 80]")
    return value[0], value[1]


_CHECKS: dict[str, Check] = {
    "command": _command,
    "size": _size,
    "env": fields.env,
    "rank": fields.whole(0, MAX_NODES - 1),
    "port": port,
}
_NOT_OF_PORTS = ("command", "size", "env")
