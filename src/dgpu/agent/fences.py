"""Limits of a task by control groups, set before its first process starts. Standard library only.

A task that runs as a user of its own has a group of version 2 (see `corral`): it shows which processes are the task's,
whatever they did to their environment, and it filters GPUs. Memory and CPU time are limited in the same group, or in
groups of version 1 where the machine has bound these controllers to that version.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from dgpu.agent.corral import Corral
from dgpu.agent.device_filter import DeviceFilters

_V1 = ("memory", "cpu")  # pids: the limit of the user, RLIMIT_NPROC, holds as well
_MAX_WEIGHT = 10_000
_KILLED = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


class Groups(NamedTuple):
    """The control groups of a task, before its first process."""

    entries: list[str]  # files that move a process into the groups
    into: int = -1  # descriptor of the group of the first entry, if a process can be created in it


NO_GROUPS = Groups([])


class Fences:
    """`usable` groups only; `enforced` names what they limit (wire.isolation.FEATURES)."""

    def __init__(self, corral: Corral, name: str) -> None:
        self._corral = corral
        self._v1 = _v1_places(name) if os.geteuid() == 0 else {}
        self._filters = DeviceFilters()
        controllers = corral.controllers
        self._limits_memory = "memory" in controllers or "memory" in self._v1
        self._limits_cpus = "cpu" in controllers or "cpu" in self._v1
        self._limits_pids = "pids" in controllers
        self._filters_devices = corral.usable and self._filters.are_usable
        self._v1_groups: dict[int, list[Path]] = {}  # by lease
        self._oom_files: dict[int, Path] = {}  # by lease with a limit of memory

    @property
    def enforced(self) -> tuple[str, ...]:
        # The number of processes is limited for the user in any case.
        found = {"cgroup": self._corral.usable, "memory": self._limits_memory, "pids": True}
        found |= {"cpus": self._limits_cpus, "devices": self._filters_devices}
        return tuple(name for name, is_enforced in found.items() if is_enforced)

    @property
    def paths(self) -> list[str]:
        """Of version 1, for the next keeper."""
        return [str(path) for path in self._v1.values()]

    @contextlib.contextmanager
    def made(self, order: dict[str, Any]) -> Iterator[Groups]:
        """Creates the groups of a task, for its start within this context. Raises OSError."""
        group = self._corral.make(order["lease"])
        if not group:
            yield Groups(self._make_v1(order))
            return
        directory = os.open(group, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if self._filters_devices and order.get("minors") is not None:
                self._filters.attach(directory, order["minors"])
            limits_memory = self._limit_v2(order, group)
            # The child shares the memory of the keeper at first: the limit of a task could kill both.
            into = -1 if limits_memory else directory
            yield Groups([f"{group}/cgroup.procs", *self._make_v1(order)], into)
        finally:
            os.close(directory)

    def entries_of(self, lease: int) -> Groups:
        """For another process of a run that has its groups."""
        v2 = [f"{self._corral.path}/{lease:d}/cgroup.procs"] if self._corral.usable else []
        return Groups([*v2, *(f"{path}/cgroup.procs" for path in self._v1_groups.get(lease, ()))])

    def _make_v1(self, order: dict[str, Any]) -> list[str]:
        lease, ram_mb, cpus_milli = order["lease"], order.get("ram_mb", 0), order.get("cpus_milli", 0)
        entries: list[str] = []
        for controller, place in self._v1.items():
            file, value = _limit_v1(controller, ram_mb, cpus_milli)
            if value:
                path = place / str(lease)
                self._v1_groups.setdefault(lease, []).append(path)
                path.mkdir(exist_ok=True)
                (path / file).write_text(str(value))
                entries.append(f"{path}/cgroup.procs")
                if controller == "memory":
                    _limit_swap(path / "memory.memsw.limit_in_bytes", value)  # of memory and swap together
                    self._oom_files[lease] = path / "memory.oom_control"
        return entries

    def counts_memory(self, lease: int) -> bool:
        """Whether a group of the lease must stay until `release` has read it."""
        return lease in self._oom_files

    def release(self, lease: int) -> str:
        """Removes the groups of version 1. Returns an error for people, if the task used too much memory."""
        oom_file = self._oom_files.pop(lease, None)
        killed = oom_file is not None and _was_killed(oom_file)
        for path in self._v1_groups.pop(lease, ()):
            with contextlib.suppress(OSError):
                path.rmdir()
        return "killed by the system: it used more memory than its ram_mb" if killed else ""

    def close(self) -> None:
        destroy_v1(self.paths)

    def _limit_v2(self, order: dict[str, Any], group: str) -> bool:
        """Whether it limits memory."""
        lease, ram_mb, cpus_milli = order["lease"], order.get("ram_mb", 0), order.get("cpus_milli", 0)
        max_processes, controllers = order["account"][3], self._corral.controllers
        if ram_mb and "memory" in controllers:
            Path(group, "memory.max").write_text(str(ram_mb << 20))
            Path(group, "memory.oom.group").write_text("1")
            _limit_swap(Path(group, "memory.swap.max"), 0)
            self._oom_files[lease] = Path(group, "memory.events")
        if cpus_milli and "cpu" in controllers:
            Path(group, "cpu.weight").write_text(str(max(1, min(cpus_milli // 10, _MAX_WEIGHT))))
        if max_processes and self._limits_pids:
            Path(group, "pids.max").write_text(str(max_processes))
        return lease in self._oom_files


def destroy_v1(paths: list[str]) -> None:
    """Removes groups of an ended keeper. Their processes are killed by then."""
    for path in map(Path, paths):
        if path.name.startswith("dgpu-") and (path / "cgroup.procs").exists():
            for group in [*(entry for entry in path.iterdir() if entry.is_dir()), path]:
                with contextlib.suppress(OSError):
                    group.rmdir()


def _limit_v1(controller: str, ram_mb: int, cpus_milli: int) -> tuple[str, int]:
    if controller == "memory":
        return "memory.limit_in_bytes", ram_mb << 20
    return "cpu.shares", max(2, cpus_milli * 1_024 // 1_000) if cpus_milli else 0


def _limit_swap(path: Path, value: int) -> None:
    """Otherwise the system moves what exceeds the limit to swap, and the task goes on. A kernel may not count swap."""
    if path.exists():
        path.write_text(str(value))


def _was_killed(path: Path) -> bool:
    try:
        found = _KILLED.search(path.read_text())
    except OSError:
        return False
    return found is not None and found[1] != "0"


def _v1_places(name: str) -> dict[str, Path]:
    """A new group for this keeper below its own one, for each controller that is bound to version 1."""
    try:
        groups = Path("/proc/self/cgroup").read_text().splitlines()
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return {}
    own = {
        each: path for line in groups for _, names, path in [line.split(":", 2)] for each in names.split(",")
    }
    found: dict[str, Path] = {}
    for line in mounts:
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        for controller in set(options.split(",")) & set(_V1) if kind == "cgroup" else ():
            _, _, _, mounted_root, target = before.split()[:5]
            relative = os.path.relpath(own.get(controller, "/"), mounted_root)
            place = Path(target) / relative / f"dgpu-{name}"
            with contextlib.suppress(OSError):
                place.mkdir()
                found[controller] = place
    return found
