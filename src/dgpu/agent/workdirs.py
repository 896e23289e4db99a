"""Directories for tasks that bring none. Standard library only.

One that a task left empty goes to the next task: making and removing directories waits for the file system's journal,
which a scheduler on the same disk keeps busy (measured: a third of all time, under load).
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

_MOST_SPARE = 256
_MODE = 0o700


class WorkDirs:
    """Named by the lease that first used them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._spare: list[str] = []
        self._used: dict[int, str] = {}  # by lease

    def take(self, lease: int) -> str:
        """The path, empty and ours alone."""
        while self._spare:
            name = self._spare.pop()
            if self._is_empty(name):
                break
        else:
            name = f"{lease:d}"
            os.makedirs(self._path(name), mode=_MODE, exist_ok=True)  # noqa: PTH103 - on the path of every start
        self._used[lease] = name
        return self._path(name)

    def give_back(self, lease: int) -> str:
        """The name of what is left to be deleted; empty: nothing."""
        name = self._used.pop(lease, "")
        if name and len(self._spare) < _MOST_SPARE and self._is_empty(name):
            self._spare.append(name)
            return ""
        return name

    def names(self) -> list[str]:
        """All that nobody else may delete."""
        return [*self._used.values(), *self._spare]

    def _is_empty(self, name: str) -> bool:
        """And still what it was when we made it: a task can do anything to its own directory."""
        with contextlib.suppress(OSError):
            found = os.lstat(self._path(name))
            if stat.S_ISDIR(found.st_mode) and stat.S_IMODE(found.st_mode) == _MODE:
                with os.scandir(self._path(name)) as entries:
                    return next(entries, None) is None
        return False

    def _path(self, name: str) -> str:
        return f"{self._directory}/{name}"
