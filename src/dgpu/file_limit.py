"""The limit on open files. Standard library only: the keeper imports it.

Many systems give a process 1,024 files by a soft limit that it may raise itself. dgpu's own processes raise it; tasks
get back the limit that dgpu was given, because programs that use select() break beyond 1,024.
"""

from __future__ import annotations

import contextlib
import os
import resource

MAX_FILES = 65_536  # enough for any cluster; a limit of a billion would only cost memory

_given: list[tuple[int, int]] = []  # soft and hard limit before the first raise in this process


def raise_file_limit() -> tuple[int, int] | None:
    """Raises the soft limit towards the hard one. Returns the limits for tasks, or None if nothing was raised."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_FILES)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return None
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):
        return None
    _given.append((soft, hard))
    return soft, hard


def file_limit() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_FILES if soft == resource.RLIM_INFINITY else soft


def open_files() -> int:
    """0 if that cannot be told: to look takes a file itself."""
    try:
        return len(os.listdir("/proc/self/fd")) - 1  # noqa: PTH208 - names are counted, nothing more
    except OSError:
        return 0


def given_soft_limit() -> int:
    """The soft limit that this process was started with."""
    return _given[0][0] if _given else file_limit()


def lower_soft_limit(soft: int) -> None:
    """For a process whose parent raised the limit: starts from what the parent was given."""
    current, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 < soft < current or current == resource.RLIM_INFINITY:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def give_back(pid: int) -> None:
    """A child that is not ours (a check command) gets the limit that this process was given."""
    if _given:
        with contextlib.suppress(OSError, ValueError):  # the child may be gone already
            resource.prlimit(pid, resource.RLIMIT_NOFILE, _given[0])
