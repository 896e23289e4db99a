"""The resources of this machine, within the limits of its control groups."""

from __future__ import annotations

import os
from pathlib import Path

_V2 = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def cpus_milli() -> int:
    """Thousandths of a CPU that this process may use."""
    available = len(os.sched_getaffinity(0)) * 1000
    limits = [_cpu_limit(directory) for directory in _own_groups("cpu")]
    return max(1, min([available, *(limit for limit in limits if limit)]))


def ram_mb() -> int:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [
        _number(directory / name)
        for directory in _own_groups("memory")
        for name in ("memory.max", "memory.limit_in_bytes")
    ]
    return min([total, *(limit for limit in limits if limit)]) // (1024 * 1024)


def in_first_pid_namespace() -> bool:
    """In other pid namespaces, the driver's process numbers have no meaning here."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino == 0xEFFFFFFC
    except OSError:
        return False


def _own_groups(controller: str) -> list[Path]:
    """The groups of this process and their parents: a limit of any of them applies."""
    found: list[Path] = []
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return found
    for line in lines:
        _, names, path = line.split(":", 2)
        if names == "":
            roots = _V2
        elif controller in names.split(","):
            roots = (Path("/sys/fs/cgroup") / controller, Path("/sys/fs/cgroup") / names)
        else:
            continue
        for root in roots:
            directory = root / path.lstrip("/")
            found.extend(each for each in (directory, *directory.parents) if each.is_relative_to(root))
    return found


def _cpu_limit(directory: Path) -> int:
    try:
        quota, period = (directory / "cpu.max").read_text().split()
        if quota != "max":
            return int(quota) * 1000 // int(period)
    except (OSError, ValueError):
        pass
    quota_us, period_us = _number(directory / "cpu.cfs_quota_us"), _number(directory / "cpu.cfs_period_us")
    return quota_us * 1000 // period_us if quota_us > 0 and period_us > 0 else 0


def _number(path: Path) -> int:
    """0: no limit."""
    try:
        return max(0, int(path.read_text()))
    except (OSError, ValueError):
        return 0
