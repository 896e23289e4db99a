"""Whether the disk of a node has room for more tasks. Standard library only."""

from __future__ import annotations

import os
from collections.abc import Iterable

LEAST_BYTES = 1 << 20
ENOUGH_BYTES = 4 << 20  # higher than the lower limit, so that the state does not change with every file


class DiskRoom:
    def __init__(self, directories: Iterable[str]) -> None:
        self._directories = tuple(dict.fromkeys(directories))
        self._was_full = False

    def is_full(self) -> bool:
        wanted = ENOUGH_BYTES if self._was_full else LEAST_BYTES
        self._was_full = any(_lacks(directory, wanted) for directory in self._directories)
        return self._was_full


def _lacks(directory: str, wanted_bytes: int) -> bool:
    try:
        found = os.statvfs(directory)
    except OSError:
        return False  # the next write will report the problem
    no_files = found.f_files > 0 and found.f_favail == 0
    return no_files or found.f_bavail * found.f_frsize < wanted_bytes
