"""What this machine can enforce between tasks of different users. Nodes report it, and `dgpu doctor` prints it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple


class Boundaries(NamedTuple):
    enforced: tuple[str, ...]  # of wire.isolation.FEATURES
    not_isolated: str = ""  # why "users" is not among them


def find_boundaries(tasks_dir: Path, *, runs_processes: bool = True) -> Boundaries:
    if not runs_processes:
        return Boundaries(("users",))  # simulated tasks run nothing
    if reason := why_not_isolated(tasks_dir):
        return Boundaries((), reason)
    return Boundaries(("users",))


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
