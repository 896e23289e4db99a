"""Control groups (v2) for tasks that signals cannot do: freeze a whole tree at once, kill a tree that keeps forking.

Standard library only. Processes of the agent's own user are moved in only when one of the two is needed: the kernel
takes about 6 ms for the first move after a pause (it waits for all CPUs), twenty times the cost of starting a process.
A task of another user enters its group itself before its program starts (see `fences`): the keeper does not wait.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from pathlib import Path

_CONTROLLERS = ("cpu", "memory", "pids")


class Corral:
    """One group per lease below the keeper's directory. `usable` is False if groups cannot be created."""

    def __init__(self, name: str) -> None:
        self._root: Path | None = None
        self.controllers: frozenset[str] = frozenset()  # that limit the groups of leases
        parent = group_of("self")
        if parent is None:
            return
        if os.geteuid() == 0 and not _delegated(parent):
            # A group with processes cannot limit groups below it. Only the topmost one can.
            top = _top_group()
            parent = top if top is not None and _delegated(top) else parent
        root = parent / f"dgpu-{name}"
        try:
            root.mkdir()
            for file in ("cgroup.kill", "cgroup.freeze"):
                if not (root / file).exists():
                    raise OSError(f"this kernel has no {file}")  # noqa: TRY301 - same end as a refused mkdir
        except OSError:
            with contextlib.suppress(OSError):
                root.rmdir()
            return
        self._root = root
        self.controllers = _delegated(root)

    @property
    def usable(self) -> bool:
        return self._root is not None

    @property
    def path(self) -> str:
        return str(self._root or "")

    def gather(self, lease: int, pids: Iterable[int]) -> bool:
        """Moves processes into the lease's group. Their later children start inside."""
        if self._root is None:
            return False
        group = self._root / str(lease)
        moved = True
        try:
            group.mkdir(exist_ok=True)
            with (group / "cgroup.procs").open("wb", buffering=0) as file:
                for pid in pids:
                    try:
                        file.write(str(pid).encode())
                    except ProcessLookupError:
                        continue
                    except OSError:
                        moved = False
        except OSError:
            return False
        return moved

    def make(self, lease: int) -> str:
        """The path of the lease's group, without a process. Empty: groups are not usable. Raises OSError."""
        if self._root is None:
            return ""
        group = f"{self.path}/{lease:d}"
        with contextlib.suppress(FileExistsError):
            os.mkdir(group)  # noqa: PTH102 - on the path of every start
        return group

    def pids(self, lease: int) -> list[int]:
        """The living processes of the lease's group."""
        if self._root is None:
            return []
        try:
            with open(f"{self.path}/{lease:d}/cgroup.procs", "rb", buffering=0) as file:  # noqa: PTH123 - on the path of every end
                return [int(pid) for pid in file.read().split()]
        except OSError:
            return []

    def freeze(self, lease: int) -> bool:
        return self._write(lease, "cgroup.freeze", "1")

    def thaw(self, lease: int) -> bool:
        return self._write(lease, "cgroup.freeze", "0")

    def kill(self, lease: int) -> bool:
        return self._write(lease, "cgroup.kill", "1")

    def release(self, lease: int) -> bool:
        """Whether the lease's group was removed: the system refuses one with a living process."""
        if self._root is None:
            return False
        try:
            os.rmdir(f"{self.path}/{lease:d}")  # noqa: PTH106 - on the path of every end
        except OSError:
            return False
        return True

    def close(self) -> None:
        destroy(self.path)

    def _write(self, lease: int, file: str, text: str) -> bool:
        if self._root is None:
            return False
        try:
            (self._root / str(lease) / file).write_text(text)
        except OSError:
            return False
        return True


def destroy(path: str) -> None:
    """Kills the remaining processes in the groups of an ended keeper, and removes the groups."""
    root = Path(path)
    if not path or not root.name.startswith("dgpu-") or not (root / "cgroup.procs").exists():
        return
    with contextlib.suppress(OSError):
        (root / "cgroup.kill").write_text("1")
    for _ in range(50):
        remaining = [entry for entry in root.iterdir() if entry.is_dir()]
        for entry in remaining:
            with contextlib.suppress(OSError):
                entry.rmdir()
        try:
            root.rmdir()
        except OSError:
            time.sleep(0.02)  # the killed processes are still exiting
        else:
            return


def _delegated(group: Path) -> frozenset[str]:
    """The controllers that can limit groups below it: a machine may lack one of them."""
    control = group / "cgroup.subtree_control"
    try:
        found = frozenset(_CONTROLLERS) & set((group / "cgroup.controllers").read_text().split())
        if _is_shared(group):
            return frozenset()
        if found:
            control.write_text(" ".join(f"+{name}" for name in sorted(found)))
        return found & set(control.read_text().split())
    except OSError:
        return frozenset()


def _is_shared(group: Path) -> bool:
    """Whether processes are in it. Then the kernel refuses memory, and with cpu or pids alone it would make all groups
    below unusable. The topmost group of a machine, which has no type, is an exception.
    """
    return (group / "cgroup.type").exists() and bool((group / "cgroup.procs").read_text())


def _top_group() -> Path | None:
    own = group_of("self")
    return None if own is None else next((each for each in (*own.parents, own) if each.is_mount()), None)


def group_of(pid: int | str) -> Path | None:
    """The directory of the v2 group that a process is in."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
        groups = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    except OSError:
        return None
    own = next((line[3:] for line in groups if line.startswith("0::")), None)
    if own is None:
        return None
    for line in mounts:
        before, _, after = line.partition(" - ")
        if after.startswith("cgroup2 "):
            _, _, _, mounted_root, target = before.split()[:5]
            relative = os.path.relpath(own, mounted_root)
            if not relative.startswith(".."):
                return Path(target) / relative
    return None
