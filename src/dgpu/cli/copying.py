"""Writes downloaded files: first to a draft, renamed when complete. No partial file remains."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable
from pathlib import Path

from dgpu.cli.failures import CliFailure, ExitCode


def safe_parts(path: str) -> tuple[str, ...]:
    """A path from the scheduler's response. A path that leads out of the target directory is refused."""
    parts = tuple(path.split("/"))
    if not path or any(part in {"", ".", ".."} or "\0" in part for part in parts):
        raise CliFailure(f"The scheduler names a file {path!r}; it is not written.")
    return parts


def make_directory(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CliFailure(f"Cannot create {directory}: {error.strerror}.") from None


def write_file(target: Path, pieces: Iterable[bytes], *, force: bool, modified_s: float | None) -> int:
    """Returns its size. The target is replaced only with `force`, and only by a complete file."""
    draft = target.with_name(f".dgpu-{os.urandom(6).hex()}.part")
    size = 0
    try:
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        with os.fdopen(fd, "wb", buffering=0) as file:
            for piece in pieces:
                size += _write(file.fileno(), piece)
        if modified_s is not None:
            os.utime(draft, (modified_s, modified_s))
        _put(draft, target, force=force)
    except OSError as error:
        raise _failure(error, target) from None
    finally:
        with contextlib.suppress(OSError):
            draft.unlink()
    return size


def _write(fd: int, piece: bytes) -> int:
    """Writes everything: a write may be partial, and only the next one reports a full disk."""
    view = memoryview(piece)
    while view:
        view = view[os.write(fd, view) :]
    return len(piece)


def _put(draft: Path, target: Path, *, force: bool) -> None:
    if force:
        draft.replace(target)
        return
    try:
        target.hardlink_to(draft)  # unlike a rename, it never replaces
    except FileExistsError:
        raise exists(target) from None
    except OSError as error:
        if error.errno not in {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}:
            raise
        # A file system without links: a race between the check and the rename remains.
        if os.path.lexists(target):
            raise exists(target) from None
        draft.rename(target)


def exists(target: Path) -> CliFailure:
    return CliFailure(f"{target} already exists. To replace it: --force", ExitCode.REFUSED)


def _failure(error: OSError, target: Path) -> CliFailure:
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return CliFailure(f"No room for {target}: {error.strerror}. It was not written; earlier files were.")
    return CliFailure(f"Cannot write {target}: {error.strerror}.")
