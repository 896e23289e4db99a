"""dgpu: a GPU scheduler that explains itself."""

import importlib
from typing import Any

__version__ = "0.1.0"

# The names of the SDK. Type checkers read them in __init__.pyi.
_HOMES = {
    "AsyncClient": "client.asynchronous",
    "Cancelled": "worker.context",
    "Client": "client.sync",
    "Future": "functions.futures",
    "RemoteError": "functions.errors",
    "as_completed": "functions.futures",
    "cancelled": "worker.context",
    "connect": "functions.session",
    "model": "functions.declare",
    "progress": "worker.context",
    "task": "functions.declare",
}


def __getattr__(name: str) -> Any:
    """Parts are imported at first use: neither the command line nor a worker process pays for the other's."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"dgpu.{home}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
