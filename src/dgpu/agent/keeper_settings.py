"""What an agent tells its keeper at the start, and the clock that both count in. Standard library only."""

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
    soft_files: int = 0  # the limit of open files that tasks get; 0: that of the keeper at its start


def boot_ms() -> int:
    """Milliseconds since boot, time asleep included: a lease is counted in them."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
