"""Deletes trees of tasks: deep, unreadable, full of links, and possibly changed during the deletion.

No path is followed: every step names an entry of an open directory. Subdirectories are moved to the top of the trash
first, so depth costs neither stack nor descriptors, and a killed agent leaves only entries of the trash.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator

TRASH = ".trash"
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_BATCH = 10_000  # entries held in memory at a time


def open_directory(name: str, dir_fd: int | None = None) -> int:
    """Raises OSError, also for a link. An unreadable directory of the same user is made readable."""
    try:
        return os.open(name, _DIRECTORY, dir_fd=dir_fd)
    except PermissionError:
        with _path_of(name, dir_fd) as path:
            os.chmod(path, 0o700)  # noqa: PTH101 - the entry itself, whatever its name is now
            return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def open_trash(root_fd: int) -> int:
    with contextlib.suppress(FileExistsError):
        os.mkdir(TRASH, 0o700, dir_fd=root_fd)
    return open_directory(TRASH, root_fd)


def throw_away(root_fd: int, name: str) -> bool:
    """Moves an entry to the trash. False: it no longer existed. One rename: only one process gets the entry."""
    trash_fd = open_trash(root_fd)
    try:
        os.rename(name, _free_name(), src_dir_fd=root_fd, dst_dir_fd=trash_fd)
    except FileNotFoundError:
        return False
    finally:
        os.close(trash_fd)
    return True


def empty_trash(root_fd: int) -> int:
    """Deletes everything. Returns the number of entries that could not be deleted."""
    trash_fd = open_trash(root_fd)
    try:
        stuck: set[str] = set()
        while names := [name for name in _some_names(trash_fd) if name not in stuck]:
            for name in names:
                if not _delete(trash_fd, name):
                    stuck.add(name)
        return len(stuck)
    finally:
        os.close(trash_fd)


def _delete(trash_fd: int, name: str) -> bool:
    """One entry of the trash; its subdirectories become entries of the trash. False: it cannot be deleted."""
    try:
        if not _is_directory(name, trash_fd):
            os.unlink(name, dir_fd=trash_fd)
            return True
        fd = open_directory(name, trash_fd)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        _take_over(fd)
        while names := _some_names(fd):
            if sum(not _take_out(each, fd, trash_fd) for each in names):
                return False
        os.rmdir(name, dir_fd=trash_fd)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def _take_out(name: str, fd: int, trash_fd: int) -> bool:
    try:
        _make_writable(fd)
        if _is_directory(name, fd):
            _move(name, fd, trash_fd)
        else:
            os.unlink(name, dir_fd=fd)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _move(name: str, fd: int, trash_fd: int) -> None:
    try:
        os.rename(name, _free_name(), src_dir_fd=fd, dst_dir_fd=trash_fd)
    except PermissionError:
        # Moving a directory changes its `..`, so it must be writable itself.
        with _path_of(name, fd) as path:
            os.chmod(path, 0o700)  # noqa: PTH101 - as above
        os.rename(name, _free_name(), src_dir_fd=fd, dst_dir_fd=trash_fd)


def _take_over(fd: int) -> None:
    """A task of the same Unix user may have it open, and would add files for ever."""
    if os.geteuid() == 0:
        os.fchown(fd, 0, 0)
        os.fchmod(fd, 0o700)


def _make_writable(fd: int) -> None:
    if os.fstat(fd).st_mode & stat.S_IRWXU != stat.S_IRWXU:
        os.fchmod(fd, 0o700)


def _is_directory(name: str, dir_fd: int) -> bool:
    return stat.S_ISDIR(os.stat(name, dir_fd=dir_fd, follow_symlinks=False).st_mode)


def _some_names(fd: int) -> list[str]:
    names: list[str] = []
    with os.scandir(fd) as entries:
        for entry in entries:
            names.append(entry.name)
            if len(names) == _BATCH:
                break
    return names


def _free_name() -> str:
    return os.urandom(12).hex()


@contextlib.contextmanager
def _path_of(name: str, dir_fd: int | None) -> Iterator[str]:
    """A path that keeps naming the same entry, even if another entry takes its name."""
    fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=dir_fd)
    try:
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), name)
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)
