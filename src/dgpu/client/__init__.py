"""The SDK: `Client` (blocking) and `AsyncClient`, typed answers, and errors one can act on."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dgpu.client.asynchronous import AsyncClient
    from dgpu.client.errors import (
        BadRequest,
        DgpuError,
        NotFound,
        NotPermitted,
        Refused,
        ServerFailed,
        Unreachable,
        WaitedTooLong,
    )
    from dgpu.client.fields import TaskFields
    from dgpu.client.stream import ServerEvent
    from dgpu.client.sync import Client

__all__ = [
    "AsyncClient",
    "BadRequest",
    "Client",
    "DgpuError",
    "NotFound",
    "NotPermitted",
    "Refused",
    "ServerEvent",
    "ServerFailed",
    "TaskFields",
    "Unreachable",
    "WaitedTooLong",
]

_HOMES = {
    "AsyncClient": "asynchronous",
    "Client": "sync",
    "TaskFields": "fields",
    "ServerEvent": "stream",
}


def __getattr__(name: str) -> Any:
    """Parts are imported when they are asked for: the command line must not pay for what it does not use."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"dgpu.client.{_HOMES.get(name, 'errors')}"), name)
