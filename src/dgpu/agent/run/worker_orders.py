"""The part of an order that makes a run a worker, and the errors of its end."""

from __future__ import annotations

import os
import sys
from typing import NamedTuple

import msgspec

from dgpu.agent.frames import WORKERS_PROTOCOL
from dgpu.agent.run.containers import NotHereError
from dgpu.agent.run.runner import RunOrder
from dgpu.agent.spawn import SHELL, one_line
from dgpu.agent.worker_dirs import SETUP_VARIABLE, SOCKET_VARIABLE, socket_of
from dgpu.core.model.task import WorkerSetup

_MODULE = "dgpu.worker"
_DEFAULT_PYTHONS = {"", "python3"}
# The Python that the worker finds, if it has dgpu; otherwise the one that runs this agent.
_EITHER = (
    f'if python3 -c "import {_MODULE}.frames" 2>/dev/null; then exec python3 -m {_MODULE}; fi; '
    f'exec "$1" -m {_MODULE}'
)
_MAX_LINE = 300


class WorkerAddress(NamedTuple):
    path: str  # of its socket
    uid: int  # of its process


def worker_argv(setup: WorkerSetup) -> list[str]:
    if setup.python in _DEFAULT_PYTHONS:
        return [SHELL, "-c", _EITHER, SHELL, sys.executable]
    return [setup.python, "-m", _MODULE]


def worker_variables(order: RunOrder, worker_dir: str) -> dict[str, str]:
    """Raises NotHereError."""
    if order.worker is None:
        return {}
    return {
        SOCKET_VARIABLE: socket_of(worker_dir, order.lease_id),
        SETUP_VARIABLE: msgspec.json.encode(order.worker).decode(),
    }


def check_worker(order: RunOrder, keeper_protocol: int) -> None:
    """Raises NotHereError."""
    if order.worker is not None and keeper_protocol < WORKERS_PROTOCOL:
        raise NotHereError("this node's keeper is older and knows no workers; it ends with its tasks")


def worker_error(tail: bytes) -> str:
    """The last line that a worker wrote before it failed, with advice if there is any."""
    lines = tail.decode(errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")[:_MAX_LINE]
    if "No module named" in last and "dgpu" in last:
        return (
            f"its Python has no dgpu. Install dgpu in this environment: pip install dgpu ({one_line(last)})"
        )
    return one_line(last)


def own_uid(uid: int | None) -> int:
    return os.geteuid() if uid is None else uid
