"""The keepers below an agent's work directory: the parents of tasks, which outlive their agent on purpose."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

from dgpu.agent.store import read_leases
from dgpu.core.ids import TaskId, task_name
from dgpu.entry.processes import ProcessRef, is_alive, process_ref

_SCRIPT = b"keeper_main"  # in the command line of every keeper


def find_keepers(tasks_dir: Path) -> list[ProcessRef]:
    """Living ones only. A pid that went to another program since is not taken for a keeper."""
    return [ref for ref, _ in _keepers(tasks_dir)]


def kept_tasks(tasks_dir: Path) -> list[str]:
    """Ids of the tasks that living keepers run: started, and no end recorded."""
    found = {
        task_name(TaskId(record["task"]))
        for _, directory in _keepers(tasks_dir)
        for record in read_leases(directory).values()
        if "end" not in record
    }
    return sorted(found)


def _keepers(tasks_dir: Path) -> list[tuple[ProcessRef, Path]]:
    found = []
    for pattern in ("keeper.json", "*/keeper.json", "*/*/keeper.json"):
        for file in sorted(tasks_dir.glob(pattern)):
            ref = _keeper_of(file)
            if ref is not None:
                found.append((ref, file.parent))
    return found


def _keeper_of(file: Path) -> ProcessRef | None:
    try:
        pid = int(json.loads(file.read_text(encoding="utf-8"))["pid"])
        if _SCRIPT not in Path(f"/proc/{pid}/cmdline").read_bytes():
            return None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return process_ref(pid)


def end_keepers(tasks_dir: Path, seconds: float = 20.0) -> int:
    """Ends them and with them every task they hold. Returns how many are left: 0 unless something hangs."""
    keepers = find_keepers(tasks_dir)
    guards = [guard for ref in keepers if (guard := _guard_of(ref)) is not None]
    for ref in keepers:
        if is_alive(ref):
            os.kill(ref.pid, signal.SIGTERM)
    # A guard is gone a moment after its keeper. Who asks for the end means all of it.
    deadline = time.monotonic() + seconds
    while any(map(is_alive, keepers + guards)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return sum(map(is_alive, keepers))


def _guard_of(keeper: ProcessRef) -> ProcessRef | None:
    try:
        stat = Path(f"/proc/{keeper.pid}/stat").read_text(encoding="utf-8", errors="replace")
        pid = int(stat.rpartition(")")[2].split()[1])
        if _SCRIPT not in Path(f"/proc/{pid}/cmdline").read_bytes():
            return None
    except OSError:
        return None
    return process_ref(pid)
