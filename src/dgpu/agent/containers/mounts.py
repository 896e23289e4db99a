"""Which directories of the node a container may see. Standard library only.

A path is opened once. The check uses the real path of the open file, and after the start the mount in the container
must be the same file: a link that is changed in between gains nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import NamedTuple

_READ_ONLY = ":ro"
_RESERVED_TARGETS = ("/proc", "/sys", "/dev")


class MountRefused(Exception):  # noqa: N818 - it says what happened
    """One line for people."""


class Pinned(NamedTuple):
    fd: int
    source: str  # its real path
    target: str
    read_only: bool


class Allowed(NamedTuple):
    path: str
    read_only: bool


def parse_allowed(entry: str) -> Allowed:
    """`/data` or `/data:ro`."""
    return Allowed(entry.removesuffix(_READ_ONLY), entry.endswith(_READ_ONLY))


def pin(
    source: str, target: str, *, read_only: bool, allowed: Iterable[str], hidden: Iterable[str]
) -> Pinned:
    """Opens a path that the list allows. `hidden`: paths that no mount may contain. Raises MountRefused."""
    fd, real = _open(source)
    entry = next((each for each in map(parse_allowed, allowed) if _is_in(real, _real(each.path))), None)
    secret = next((path for path in hidden if _is_in(_real(path), real) or _is_in(real, _real(path))), None)
    if entry is None or secret is not None or _is_reserved(target):
        os.close(fd)
        raise MountRefused(_reason(source, real, target, entry, secret))
    return Pinned(fd, real, target, read_only or entry.read_only)


def pin_own(directory: str, target: str, *, read_only: bool = False) -> Pinned:
    """A directory that was created for the run."""
    fd, real = _open(directory)
    return Pinned(fd, real, target, read_only)


def is_unchanged(pinned: Pinned, root_pid: int) -> bool:
    """Whether the container of this process has mounted the file that was checked."""
    try:
        mounted = os.stat(f"/proc/{root_pid}/root{pinned.target}")  # noqa: PTH116 - one path of another process
    except OSError:
        return True  # it has ended, or this user may not look: the path was checked
    checked = os.fstat(pinned.fd)
    return (mounted.st_dev, mounted.st_ino) == (checked.st_dev, checked.st_ino)


def _open(path: str) -> tuple[int, str]:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise MountRefused(f"mount {path}: {why}") from error
    return fd, os.readlink(f"/proc/self/fd/{fd}")  # noqa: PTH115 - as above


def _reason(source: str, real: str, target: str, entry: Allowed | None, secret: str | None) -> str:
    shown = source if source == real else f"{source} ({real})"
    if entry is None:
        return f"mount {shown} is outside executor.docker.allowed_mounts of this node"
    if secret is not None:
        return f"mount {shown} would show {secret} of this node to the container"
    return f"mount target {target}: expected a path outside of {', '.join(_RESERVED_TARGETS)} and not /"


def _is_reserved(target: str) -> bool:
    return target == "/" or any(_is_in(target, reserved) for reserved in _RESERVED_TARGETS)


def _is_in(path: str, directory: str) -> bool:
    return PurePosixPath(path).is_relative_to(directory)


def _real(path: str) -> str:
    return os.path.realpath(path)
