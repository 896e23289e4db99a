"""The SDK: `Client` (blocking) and `AsyncClient`, typed answers, and an error type for each kind of failure."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dgpu.client.asynchronous import AsyncClient
    from dgpu.client.errors import (
        BadRequest,
        DgpuError,
        NotFound,
        NotMaster,
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
    "NotMaster",
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
    """Parts are imported at first use, so that the command line does not import unused parts."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"dgpu.client.{_HOMES.get(name, 'errors')}"), name)
