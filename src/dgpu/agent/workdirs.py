"""Directories for tasks without their own. Standard library only.

A directory stays after the end of its task; `agent.retention` deletes it later. The next task reuses an empty one:
creating and removing directories waits for the file system's journal, which a scheduler on the same disk keeps busy.

A directory of an isolated task belongs to the task's Unix user, and only tasks of the same user reuse it. Their parent
belongs to the agent's user: no task can put a link in the place of a directory.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

_MAX_SPARE = 64  # beyond this, the oldest is removed if it is empty
_MAX_ASIDE = 1_000
_MODE = 0o700


Owner = tuple[int, int] | None  # uid and gid; None: the agent's own user


def make_private(path: str, owner: Owner) -> None:
    """A directory that only its owner can use. Its parent must belong to the agent's user. Raises OSError."""
    os.makedirs(path, _MODE)  # noqa: PTH103 - on the path of every start
    if owner is not None:
        os.chown(path, *owner, follow_symlinks=False)


class WorkDirs:
    """Named by task and attempt; see `wire.run_dirs`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._spare: dict[str, Owner] = {}  # by name, the newest last; checked when it is taken again
        self._used: dict[int, list[tuple[str, Owner]]] = {}  # by lease

    def take(self, lease: int, name: str, owner: Owner = None, staged: str = "") -> str:
        """The path of a new, empty directory, or of the `staged` one under its new name. Raises OSError."""
        self._spare.pop(name, None)  # of another cluster: the name is in use again
        self._set_aside(name)
        if staged:
            os.rename(staged, self._path(name))  # noqa: PTH104 - on the path of every start
        elif not self._reuse(name, owner):
            make_private(self._path(name), owner)
        self._used.setdefault(lease, []).append((name, owner))
        return self._path(name)

    def give_back(self, lease: int, *, reusable: bool = True) -> None:
        """The task has ended. Not reusable: a process of it may still be there."""
        for name, owner in self._used.pop(lease, ()):
            if reusable:
                self._spare[name] = owner
        while len(self._spare) > _MAX_SPARE:
            oldest = next(iter(self._spare))
            del self._spare[oldest]
            with contextlib.suppress(OSError):  # the system refuses one with files
                os.rmdir(self._path(oldest))  # noqa: PTH106 - on the path of every end

    def _reuse(self, name: str, owner: Owner) -> bool:
        for spare, its_owner in reversed(list(self._spare.items())):
            if its_owner != owner:
                continue
            del self._spare[spare]
            if self._is_empty(spare, owner):
                with contextlib.suppress(OSError):  # the agent just removed it: try the next one
                    os.rename(self._path(spare), self._path(name))  # noqa: PTH104 - on the path of every start
                    return True
        return False

    def _set_aside(self, name: str) -> None:
        """A directory of this name belongs to another cluster, or to a journal that was restored from a backup."""
        if not os.path.lexists(self._path(name)):
            return
        for number in range(1, _MAX_ASIDE):
            other = self._path(f"{name}~{number}")
            if not os.path.lexists(other):
                os.rename(self._path(name), other)  # noqa: PTH104 - on the path of every start
                return

    def _is_empty(self, name: str, owner: Owner) -> bool:
        """And still unchanged: a task can do anything with its directory."""
        with contextlib.suppress(OSError):
            found = os.lstat(self._path(name))
            if owner is not None and (found.st_uid, found.st_gid) != owner:
                return False
            if stat.S_ISDIR(found.st_mode) and stat.S_IMODE(found.st_mode) == _MODE:
                with os.scandir(self._path(name)) as entries:
                    return next(entries, None) is None
        return False

    def _path(self, name: str) -> str:
        return f"{self._directory}/{name}"
