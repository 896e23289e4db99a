"""A result as JSON, if JSON can hold it."""

from __future__ import annotations

import base64
import math
from typing import Any, Literal

import msgspec

_MAX_DEPTH = 100
_MAX_SAFE = 1 << 53  # larger integers change in a browser


def shown(result: bytes, encoding: str) -> tuple[Any, Literal["json", "msgpack"]]:
    """The value, or the msgpack in base64 if JSON cannot hold it."""
    if not result:
        return None, "json"
    if encoding == "json":
        return msgspec.Raw(result), "json"
    try:
        value = msgspec.msgpack.decode(result)
    except (msgspec.DecodeError, ValueError, RecursionError):
        value = b""
    if is_json(value):
        return value, "json"
    return base64.b64encode(result).decode(), "msgpack"


def is_json(value: Any, depth: int = 0) -> bool:
    kind = type(value)
    if value is None or kind is str or kind is bool:
        return True
    if kind is int:
        return bool(-_MAX_SAFE < value < _MAX_SAFE)
    if kind is float:
        return math.isfinite(value)
    if depth > _MAX_DEPTH:
        return False
    if kind is list:
        return all(is_json(each, depth + 1) for each in value)
    if kind is dict:
        return all(type(key) is str and is_json(each, depth + 1) for key, each in value.items())
    return False
