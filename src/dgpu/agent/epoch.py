"""The highest epoch this agent has seen, on disk. One file for all nodes of a host."""

from __future__ import annotations

import os
from pathlib import Path


class EpochFile:
    def __init__(self, path: Path) -> None:
        self._path = path
        self.highest = _read(path)

    def save(self, epoch: int) -> None:
        """Returns once it is durable: a scheduler of an older epoch is refused from now on, whatever happens."""
        if epoch <= self.highest:
            return
        fresh = self._path.with_suffix(".new")
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, b"%d\n" % epoch)
            os.fsync(fd)
        finally:
            os.close(fd)
        fresh.replace(self._path)
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        self.highest = epoch


def _read(path: Path) -> int:
    try:
        return int(path.read_text())
    except FileNotFoundError:
        return 0
