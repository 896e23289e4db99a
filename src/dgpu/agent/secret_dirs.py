"""Files with secrets of running tasks. Standard library only.

They are in memory (tmpfs) where the machine has such a file system, so no disk ever holds them. Each run has a
directory that only its user can open. It is removed when the run has ended. A new scribe removes the files that a
killed one left: the tasks of the earlier keeper have ended by then, or are being killed.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import shutil
import stat

from dgpu.agent.keeper_settings import KeeperSettings
from dgpu.agent.workdirs import Owner, make_private

SECRETS_VARIABLE = "DGPU_SECRETS_DIR"
HOST_FILE_VARIABLE = "DGPU_HOSTFILE"
_IN_MEMORY = "/dev/shm"  # noqa: S108 - each keeper has a directory of its own there, checked before use
_TMPFS = "tmpfs"
_PASSABLE = 0o711
_LISTED = 0o750
_CLAIMS = 20


def secrets_dir_of(settings: KeeperSettings) -> str:
    """One per keeper directory: two agents on a machine do not share one."""
    if not _is_in_memory(_IN_MEMORY):
        return f"{settings.work_dir}/.secrets"
    name = hashlib.sha256(settings.directory.encode()).hexdigest()[:16]
    return f"{_IN_MEMORY}/dgpu-{os.geteuid()}-{name}"


class SecretDirs:
    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._used: set[int] = set()
        with contextlib.suppress(OSError):
            if self._is_ours():
                _remove(directory)

    def write(self, lease: int, files: dict[str, str], owner: Owner = None) -> str:
        """The path of the directory. Raises OSError."""
        self._open_directory()
        path = f"{self._directory}/{lease:d}"
        self._used.add(lease)
        os.mkdir(path, 0o700)  # noqa: PTH102 - as everywhere in the scribe
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            for name, value in files.items():
                _write(folder, name, base64.b64decode(value), owner)
            if owner is not None:
                # Its user can list it but create nothing in it: this process removes the content.
                os.fchown(folder, -1, owner[1])
                os.fchmod(folder, _LISTED)
        finally:
            os.close(folder)
        return path

    def make(self, lease: int, owner: Owner = None) -> str:
        """An empty directory in which its user may create files. Raises OSError."""
        self._open_directory()
        path = f"{self._directory}/{lease:d}"
        self._used.add(lease)
        make_private(path, owner)
        return path

    def remove(self, lease: int) -> None:
        if lease not in self._used:
            return
        self._used.discard(lease)
        _remove(f"{self._directory}/{lease:d}")
        if not self._used:
            with contextlib.suppress(OSError):
                os.rmdir(self._directory)  # noqa: PTH106 - the same

    def _open_directory(self) -> None:
        """Others may pass through it, not list it: a task of another user must reach its own directory."""
        with contextlib.suppress(FileExistsError):
            os.makedirs(self._directory, _PASSABLE)  # noqa: PTH103 - the same
        for _ in range(_CLAIMS):
            if self._is_ours() or os.geteuid() != 0:
                break
            self._claim()
        if not self._is_ours():
            raise PermissionError(1, f"{self._directory} belongs to another user")
        if stat.S_IMODE(os.lstat(self._directory).st_mode) != _PASSABLE:
            os.chmod(self._directory, _PASSABLE)  # noqa: PTH101 - the same; an umask took bits

    def _is_ours(self) -> bool:
        found = os.lstat(self._directory)
        return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()

    def _claim(self) -> None:
        """Any user can take the name in /dev/shm first. Root moves that entry away, so that no tenant stops the tasks
        of another. An entry with content stays there under its new name: removing it may take any time.
        """
        own, foreign = (f"{self._directory}.{os.urandom(8).hex()}" for _ in range(2))
        os.mkdir(own, _PASSABLE)  # noqa: PTH102 - the same
        try:
            with contextlib.suppress(FileNotFoundError):
                os.rename(self._directory, foreign)  # noqa: PTH104 - the same
            os.rename(own, self._directory)  # noqa: PTH104 - the same; replaces an empty directory only
        except OSError:  # taken again in between
            with contextlib.suppress(OSError):
                os.rmdir(own)  # noqa: PTH106 - the same
        for remove in (os.rmdir, os.unlink):
            with contextlib.suppress(OSError):
                remove(foreign)


def _remove(path: str) -> None:
    """A task of this process' own user may have left a tree too deep for rmtree there: the tree stays."""
    with contextlib.suppress(OSError, RecursionError):
        shutil.rmtree(path)


def _write(folder: int, name: str, value: bytes, owner: Owner) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(name, flags, 0o400, dir_fd=folder), "wb") as file:
        file.write(value)
        if owner is not None:
            os.fchown(file.fileno(), *owner)


def _is_in_memory(directory: str) -> bool:
    try:
        with open("/proc/mounts", encoding="utf-8", errors="replace") as mounts:  # noqa: PTH123 - the same
            kinds = [words[2] for line in mounts if (words := line.split())[1] == directory]
    except OSError:
        return False
    return bool(kinds) and kinds[-1] == _TMPFS and os.access(directory, os.W_OK)
