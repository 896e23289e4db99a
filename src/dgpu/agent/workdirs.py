"""Directories for tasks without their own. Standard library only.

A directory stays after the end of its task; `agent.retention` deletes it later. The next task reuses an empty one:
creating and removing directories waits for the file system's journal, which a scheduler on the same disk keeps busy.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

_MAX_SPARE = 64  # more empty directories than this are removed at once
_MAX_ASIDE = 1_000
_MODE = 0o700


class WorkDirs:
    """Named by task and attempt; see `wire.run_dirs`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._spare: list[str] = []
        self._used: dict[int, str] = {}  # by lease

    def take(self, lease: int, name: str) -> str:
        """The path of a new, empty directory. Raises OSError."""
        self._set_aside(name)
        while self._spare:
            spare = self._spare.pop()
            if not self._is_empty(spare):
                continue
            with contextlib.suppress(OSError):  # the agent just removed it: try the next one
                os.rename(self._path(spare), self._path(name))  # noqa: PTH104 - on the path of every start
                break
        else:
            os.makedirs(self._path(name), _MODE)  # noqa: PTH103 - on the path of every start
        self._used[lease] = name
        return self._path(name)

    def give_back(self, lease: int, *, reusable: bool = True) -> None:
        """The task has ended. Not reusable: a process of it may still be there."""
        name = self._used.pop(lease, "")
        if not name or not reusable or not self._is_empty(name):
            return
        if len(self._spare) < _MAX_SPARE:
            self._spare.append(name)
            return
        with contextlib.suppress(OSError):
            os.rmdir(self._path(name))  # noqa: PTH106 - on the path of every end

    def _set_aside(self, name: str) -> None:
        """A directory of this name belongs to another cluster, or to a journal that was restored from a backup."""
        if not os.path.lexists(self._path(name)):
            return
        for number in range(1, _MAX_ASIDE):
            other = self._path(f"{name}~{number}")
            if not os.path.lexists(other):
                os.rename(self._path(name), other)  # noqa: PTH104 - on the path of every start
                return

    def _is_empty(self, name: str) -> bool:
        """And still unchanged: a task can do anything with its directory."""
        with contextlib.suppress(OSError):
            found = os.lstat(self._path(name))
            if stat.S_ISDIR(found.st_mode) and stat.S_IMODE(found.st_mode) == _MODE:
                with os.scandir(self._path(name)) as entries:
                    return next(entries, None) is None
        return False

    def _path(self, name: str) -> str:
        return f"{self._directory}/{name}"
