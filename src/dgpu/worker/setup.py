"""The settings of a worker, from the environment that its agent made."""

from __future__ import annotations

import os
from collections.abc import Mapping

import msgspec

SOCKET = "DGPU_WORKER_SOCKET"
SETUP = "DGPU_WORKER_SETUP"


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    app_id: str = ""
    python_path: tuple[str, ...] = ()
    preload: tuple[str, ...] = ()
    max_models: int = 2
    model_ttl_ms: int = 3_600_000
    heartbeat_ms: int = 10_000


class SetupError(ValueError):
    """The environment does not describe a worker."""


def read_setup(environ: Mapping[str, str] = os.environ) -> tuple[str, Setup]:
    """The path of the socket, and the settings."""
    path = environ.get(SOCKET, "")
    if not path:
        raise SetupError(f"{SOCKET} is not set: agents start this program, people do not")
    try:
        setup = msgspec.json.decode(environ.get(SETUP) or "{}", type=Setup)
    except msgspec.DecodeError as error:
        raise SetupError(f"{SETUP} is not a worker's setup: {error}") from error
    return path, setup
