"""`dgpu witness`: a member of the engine on a machine without a scheduler."""

from __future__ import annotations

import sys
from pathlib import Path

from dgpu.entry.config_types import Logging
from dgpu.entry.ha.errors import HaFailure
from dgpu.entry.ha.supervisor import MemberSupervisor
from dgpu.entry.supervisor import StopSignals

DEFAULT_DIR = Path("/var/lib/dgpu-witness")
_LOOK_S = 1.0


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


class WitnessBeside:
    """A witness in the process of an agent. Its refusal does not end the agent."""

    def __init__(self, directory: Path) -> None:
        """Raises HaFailure or OSError."""
        self._supervisor = MemberSupervisor(directory)
        self._supervisor.start()

    def stop(self) -> None:
        self._supervisor.stop()


def _failed(why: str) -> int:
    sys.stderr.write(f"dgpu witness: {why}\n")
    sys.stderr.flush()
    return 1
