"""Writes downloaded files: first to a draft, renamed when complete. No partial file remains.

The target directory is opened once, and no link below it is followed. Another user who can write there cannot direct
a file to another place, also not by a change during the download.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from dgpu.cli.failures import CliFailure, ExitCode

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def safe_parts(path: str) -> tuple[str, ...]:
    """A path from the scheduler's response. A path that leads out of the target directory is refused."""
    parts = tuple(path.split("/"))
    if not path or any(part in {"", ".", ".."} or "\0" in part for part in parts):
        raise CliFailure(f"The scheduler names a file {path!r}; it is not written.")
    return parts


class Target:
    """The directory that downloads go to. Paths below it are tuples of names."""

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self._fd = fd

    def make_directory(self, parts: tuple[str, ...]) -> None:
        with self._inside(parts):
            pass

    def write_file(
        self, parts: tuple[str, ...], pieces: Iterable[bytes], *, force: bool, modified_s: float | None
    ) -> int:
        """Returns its size. An existing file is replaced only with `force`, and only by a complete file."""
        shown = self.path.joinpath(*parts)
        with self._inside(parts[:-1]) as directory:
            try:
                return _write_file(directory, parts[-1], pieces, force=force, modified_s=modified_s)
            except FileExistsError:
                raise exists(shown) from None
            except OSError as error:
                raise _failure(error, shown) from None

    @contextlib.contextmanager
    def _inside(self, parts: tuple[str, ...]) -> Iterator[int]:
        """The descriptor of a directory, which is created if it is missing."""
        fd = os.dup(self._fd)
        try:
            for number, part in enumerate(parts, 1):
                shown = self.path.joinpath(*parts[:number])
                try:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(part, dir_fd=fd)
                    below = os.open(part, _DIRECTORY | os.O_NOFOLLOW, dir_fd=fd)
                except OSError as error:
                    raise _no_directory(error, shown) from None
                os.close(fd)
                fd = below
            yield fd
        finally:
            os.close(fd)


@contextlib.contextmanager
def target_directory(path: Path) -> Iterator[Target]:
    """Creates it if it is missing. A link to it is followed, because the user named it."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, _DIRECTORY)
    except OSError as error:
        raise CliFailure(f"Cannot create {path}: {error.strerror}.") from None
    try:
        yield Target(path, fd)
    finally:
        os.close(fd)


def _write_file(
    directory: int, name: str, pieces: Iterable[bytes], *, force: bool, modified_s: float | None
) -> int:
    draft = f".dgpu-{os.urandom(6).hex()}.part"
    size = 0
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666, dir_fd=directory)
    try:
        with os.fdopen(fd, "wb", buffering=0) as file:
            for piece in pieces:
                size += _write(file.fileno(), piece)
            if modified_s is not None:
                os.utime(file.fileno(), (modified_s, modified_s))
        _put(directory, draft, name, force=force)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(draft, dir_fd=directory)
    return size


def _write(fd: int, piece: bytes) -> int:
    """Writes everything: a write may be partial, and only the next one reports a full disk."""
    view = memoryview(piece)
    while view:
        view = view[os.write(fd, view) :]
    return len(piece)


def _put(directory: int, draft: str, name: str, *, force: bool) -> None:
    if force:
        os.replace(draft, name, src_dir_fd=directory, dst_dir_fd=directory)
        return
    try:
        # Unlike a rename, a link never replaces.
        os.link(draft, name, src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=False)
    except OSError as error:
        if error.errno not in {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}:
            raise
        # A file system without links: a race between the check and the rename remains.
        if _is_there(directory, name):
            raise FileExistsError from None
        os.rename(draft, name, src_dir_fd=directory, dst_dir_fd=directory)


def _is_there(directory: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def exists(target: Path) -> CliFailure:
    return CliFailure(f"{target} already exists. To replace it: --force", ExitCode.REFUSED)


def _no_directory(error: OSError, path: Path) -> CliFailure:
    if error.errno in {errno.ENOTDIR, errno.ELOOP}:
        return CliFailure(
            f"{path} is a link or a file, not a directory. Files are not written through links: remove it, or fetch "
            "into another directory (--into).",
            ExitCode.REFUSED,
        )
    return CliFailure(f"Cannot create {path}: {error.strerror}.")


def _failure(error: OSError, target: Path) -> CliFailure:
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return CliFailure(f"No room for {target}: {error.strerror}. It was not written; earlier files were.")
    return CliFailure(f"Cannot write {target}: {error.strerror}.")
