"""Large arguments and results: files beside the socket of a worker.

The directory belongs to the user of the worker and may contain anything, while the agent may be root. So files are
opened by name in the directory, without links, and a result must be a regular file of that user. Calls block: use a
thread.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

PIECE_BYTES = 512 << 10


class FileRefused(Exception):  # noqa: N818 - a fact about the worker
    """One line for people."""


class WorkerGone(FileRefused):
    """Its directory is deleted when it ends."""


def arguments_name(lease: int) -> str:
    return f"args-{lease:d}"


def store_arguments(source: Path, directory: str, name: str, uid: int) -> None:
    """Copies a verified file for the worker. Raises OSError."""
    with _opened(directory) as folder, source.open("rb") as content:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=folder)  # of an earlier agent, perhaps incomplete
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(name, flags, 0o400, dir_fd=folder), "wb") as file:
            if uid != os.geteuid():
                os.fchown(file.fileno(), uid, -1)
            shutil.copyfileobj(content, file, PIECE_BYTES)


def open_result(directory: str, name: str, uid: int, size: int) -> int:
    """Raises FileRefused, or WorkerGone."""
    if not _is_file_name(name):
        raise FileRefused(f"{name[:64]!r} is no name of a file")
    try:
        with _opened(directory) as folder:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = os.open(name, flags, dir_fd=folder)
    except OSError as error:
        if not os.path.lexists(directory):
            raise WorkerGone("its worker has ended") from None
        raise FileRefused(f"its file cannot be read: {error.strerror}") from None
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != uid or found.st_size != size:
        os.close(descriptor)
        raise FileRefused("its file is not as the worker described it")
    return descriptor


def check_digest(descriptor: int, sha256: str) -> None:
    """Raises FileRefused."""
    digest = hashlib.sha256()
    offset = 0
    try:
        while piece := os.pread(descriptor, PIECE_BYTES, offset):
            digest.update(piece)
            offset += len(piece)
    except OSError as error:
        raise FileRefused(f"its file cannot be read: {error.strerror}") from None
    if digest.hexdigest() != sha256:
        raise FileRefused("its file does not have the checksum that the worker gave")


def delete(directory: str, name: str) -> None:
    """Ignores a name that leads out of the directory: the worker chose it, and the agent may be root."""
    if not _is_file_name(name):
        return
    with contextlib.suppress(OSError), _opened(directory) as folder:
        os.unlink(name, dir_fd=folder)


def _is_file_name(name: str) -> bool:
    return name not in {"", ".", ".."} and "/" not in name and "\0" not in name


@contextlib.contextmanager
def _opened(directory: str) -> Iterator[int]:
    folder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield folder
    finally:
        os.close(folder)


def is_full(error: OSError) -> bool:
    return error.errno in {errno.ENOSPC, errno.EDQUOT}
