"""`dgpu witness`: a member of the engine on a machine without a scheduler."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

import structlog

from dgpu.entry.config_types import Logging
from dgpu.entry.ha.errors import HaFailure
from dgpu.entry.ha.supervisor import MemberSupervisor
from dgpu.entry.supervisor import StopSignals

DEFAULT_DIR = Path("/var/lib/dgpu-witness")
_LOOK_S = 1.0

_log = structlog.get_logger("dgpu.ha")


def run_witness(directory: Path, logging: Logging | None = None) -> int:
    """Serves until SIGTERM or Ctrl-C; returns the exit code."""
    from dgpu.entry.logs import set_up_logging

    set_up_logging(logging or Logging())
    signals = StopSignals()
    try:
        supervisor = MemberSupervisor(directory)
        supervisor.start()
    except (HaFailure, OSError) as error:
        return _failed(str(error))
    try:
        while not signals.received and not supervisor.refused:
            signals.wait(_LOOK_S)
    finally:
        supervisor.stop()
    return _failed(supervisor.refused) if supervisor.refused else 0


@contextlib.contextmanager
def witness_beside(directory: Path) -> Iterator[None]:
    """A witness in the process of an agent. If it cannot start, the log has the reason, and the agent goes on."""
    try:
        supervisor = MemberSupervisor(directory)
        supervisor.start()
    except (HaFailure, OSError) as error:
        _log.error("witness_not_started", reason=str(error))
        yield
        return
    try:
        yield
    finally:
        supervisor.stop()


def _failed(why: str) -> int:
    sys.stderr.write(f"dgpu witness: {why}\n")
    sys.stderr.flush()
    return 1
