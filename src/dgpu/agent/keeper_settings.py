"""The settings that an agent gives its keeper, and the clock of both. Standard library only."""

from __future__ import annotations

import dataclasses
import time

from dgpu.agent.chunks import DEFAULT_CAP_BYTES


@dataclasses.dataclass(frozen=True, kw_only=True)
class KeeperSettings:
    directory: str  # socket, lock, lease log
    work_dir: str  # a directory per run, see wire.run_dirs
    output_dir: str
    output_cap_bytes: int = DEFAULT_CAP_BYTES
    idle_exit_ms: int = 600_000  # without an agent and without a running task
    soft_files: int = 0  # limit of open files for tasks; 0: the keeper's own at its start


def boot_ms() -> int:
    """Milliseconds since boot, including suspends; the unit of leases."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
