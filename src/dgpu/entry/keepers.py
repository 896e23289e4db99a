"""The keepers below an agent's work directory: the parents of tasks. They outlive their agent on purpose."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from dgpu.agent.store import read_leases
from dgpu.core.model.ids import TaskId, task_name
from dgpu.entry.processes import ProcessRef, command_line, process_ref, stop_process

_SCRIPT = b"keeper_main"  # in the command line of every keeper
_END_SECONDS = 20.0
_RECORDS = ("keeper.json", "*/keeper.json", "*/*/keeper.json")


def find_keepers(tasks_dir: Path) -> list[ProcessRef]:
    """Only living keepers. A pid that another program reuses is not counted."""
    return [ref for ref, _ in _keepers(tasks_dir)]


def kept_tasks(tasks_dir: Path) -> list[str]:
    """Ids of tasks that living keepers run: started, without a recorded end."""
    found = {
        task_name(TaskId(record["task"]))
        for _, directory in _keepers(tasks_dir)
        for record in read_leases(directory).values()
        if "end" not in record
    }
    return sorted(found)


def _keepers(tasks_dir: Path) -> list[tuple[ProcessRef, Path]]:
    files = [file for pattern in _RECORDS for file in sorted(tasks_dir.glob(pattern))]
    return [(ref, file.parent) for file in files if (ref := _keeper_of(file)) is not None]


def _keeper_of(file: Path) -> ProcessRef | None:
    try:
        pid = int(json.loads(file.read_text(encoding="utf-8"))["pid"])
        if _SCRIPT not in command_line(pid):
            return None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return process_ref(pid)


def _keeper_processes(tasks_dir: Path) -> list[ProcessRef]:
    """Finds guards and keepers by their command line: a starting keeper has no record yet."""
    found = [process_ref(pid) for pid, directory in _commands() if directory.is_relative_to(tasks_dir)]
    return [ref for ref in found if ref is not None]


def agent_directories() -> list[Path]:
    """State directories of all agents with a living keeper on this machine, whoever started them."""
    return sorted({directory for _, directory in _commands()})


def _commands() -> Iterator[tuple[int, Path]]:
    """Pids of guards and keepers on this machine, with the state directories of their agents."""
    for pid in [int(name) for name in os.listdir("/proc") if name.isdigit()]:  # noqa: PTH208 - names only
        try:
            command = command_line(pid)
            if _SCRIPT not in command:
                continue
            settings = json.loads(command.rstrip(b"\0").rpartition(b"\0")[2])
            directory = Path(settings["directory"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
        yield pid, directory


def end_keepers(tasks_dir: Path) -> int:
    """Ends the keepers and all their tasks. Returns the number of remaining ones: 0 unless a process hangs."""
    asked: set[ProcessRef] = set()
    guards: set[ProcessRef] = set()  # each ends shortly after its keeper
    deadline = time.monotonic() + _END_SECONDS
    while (left := _keeper_processes(tasks_dir)) and time.monotonic() < deadline:
        keepers = find_keepers(tasks_dir)
        guards |= {guard for ref in keepers if (guard := _guard_of(ref)) is not None}
        for ref in {*left, *keepers} - guards - asked:
            with contextlib.suppress(ProcessLookupError):
                os.kill(ref.pid, signal.SIGTERM)
            asked.add(ref)
        time.sleep(0.02)
    return len(find_keepers(tasks_dir))


def end_idle_keepers(tasks_dir: Path) -> None:
    """Ends the keepers without tasks. A keeper that does not answer may have tasks and is left alone."""
    for ref, directory in _keepers(tasks_dir):
        if _held_leases(directory) == 0:
            guard = _guard_of(ref)
            stop_process(ref)
            if guard is not None:
                stop_process(guard)


def _held_leases(directory: Path) -> int | None:
    """The keeper's greeting of a new connection. None: no answer, or an agent is connected."""
    from dgpu.agent.frames import Decoder
    from dgpu.agent.keeper_link import connect

    decoder = Decoder()
    try:
        with connect(directory) as link:
            while received := link.recv(1 << 16):
                for frame in decoder.feed(received):
                    return len(frame["hello"]["leases"]) if "hello" in frame else None
    except (OSError, ValueError, KeyError):
        return None
    return None


def _guard_of(keeper: ProcessRef) -> ProcessRef | None:
    try:
        stat = Path(f"/proc/{keeper.pid}/stat").read_text(encoding="utf-8", errors="replace")
        pid = int(stat.rpartition(")")[2].split()[1])
        if _SCRIPT not in command_line(pid):
            return None
    except OSError:
        return None
    return process_ref(pid)
