"""What this machine can enforce between tasks of different users. Nodes report it, and `dgpu doctor` prints it."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from dgpu.agent.corral import Corral
from dgpu.agent.fences import Fences

_DRIVER = Path("/proc/driver/nvidia/gpus")
_MINOR = re.compile(r"^Device Minor:\s*(\d+)", re.MULTILINE)
_UUID = re.compile(r"^GPU UUID:\s*(\S+)", re.MULTILINE)


class Boundaries(NamedTuple):
    enforced: tuple[str, ...]  # of wire.isolation.FEATURES
    not_isolated: str = ""  # why "users" is not among them


def find_boundaries(tasks_dir: Path, *, runs_processes: bool = True) -> Boundaries:
    if not runs_processes:
        return Boundaries(("users",))  # simulated tasks run nothing
    if reason := why_not_isolated(tasks_dir):
        return Boundaries((), reason)
    # Tried, not guessed: the keeper makes the same groups.
    name = os.urandom(8).hex()
    corral = Corral(name)
    fences = Fences(corral, name)
    try:
        return Boundaries(("users", *fences.enforced))
    finally:
        fences.close()
        corral.close()


def why_not_isolated(tasks_dir: Path) -> str:
    """Why this process cannot run tasks as other users; empty: it can."""
    if os.geteuid() != 0:
        return "the agent is not root: it cannot run tasks as other Unix users"
    for parent in reversed(tasks_dir.parents):
        if parent.exists() and not parent.stat().st_mode & 0o001:
            return (
                f"other Unix users cannot enter {parent}, where the directories of tasks are: set executor.tasks_dir "
                "to another place, such as /var/lib/dgpu-tasks"
            )
    return ""


def minors_of(gpu_ids: Sequence[str], driver: Path = _DRIVER) -> list[int] | None:
    """The numbers of the device files /dev/nvidiaN of these GPUs. None: they cannot be told apart, so no filter must
    hide them. A simulated GPU has no file.
    """
    if any(gpu_id.startswith("MIG-") for gpu_id in gpu_ids):
        return None  # a part of a GPU has further device files
    found: dict[str, int] = {}
    for file in sorted(driver.glob("*/information")):
        try:
            text = file.read_text(errors="replace")
        except OSError:
            return None
        uuid, minor = _UUID.search(text), _MINOR.search(text)
        if uuid is None or minor is None:
            return None
        found[uuid[1]] = int(minor[1])
    return [found[gpu_id] for gpu_id in gpu_ids if gpu_id in found]
