"""Unpacks an archive of a project into a new directory, with the rights of the caller's thread.

Nothing outside of the directory is touched: every entry is created below an open directory without following links.
Only files, directories and links that stay inside are accepted.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tarfile
import zlib
from collections.abc import Iterator
from typing import IO

from dgpu.wire.uploads import MAX_ENTRIES

_PIECE_BYTES = 1 << 20
_MAX_DEPTH = 100
_FULL = {errno.ENOSPC, errno.EDQUOT}


class CannotUnpack(Exception):  # noqa: N818 - the name states the failure
    """The text is for the user of the task. `is_of_node`: another node may have more luck."""

    def __init__(self, why: str, *, is_of_node: bool = False) -> None:
        super().__init__(why)
        self.is_of_node = is_of_node


def unpack(archive: IO[bytes], root: str, max_bytes: int) -> None:
    """`root` is an empty directory of the user. Raises CannotUnpack."""
    try:
        root_fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            _Unpacking(root_fd, max_bytes).run(archive)
            _refuse_links_out(root)
        finally:
            os.close(root_fd)
    except (tarfile.TarError, EOFError, zlib.error, UnicodeError, ValueError) as error:
        raise CannotUnpack(f"the upload is not a valid archive: {error}") from None
    except OSError as error:
        if error.errno in _FULL:
            raise CannotUnpack("there is no room on the node to unpack the upload", is_of_node=True) from None
        if isinstance(error, (tarfile.TarError, EOFError)):
            raise CannotUnpack(f"the upload is not a valid archive: {error}") from None
        raise CannotUnpack(f"the upload cannot be unpacked: {error.strerror or error}") from None


class _Unpacking:
    def __init__(self, root_fd: int, max_bytes: int) -> None:
        self._root_fd = root_fd
        self._left_bytes = max_bytes
        self._entries = 0

    def run(self, archive: IO[bytes]) -> None:
        # `r|`: read once from the beginning to the end, so that memory does not grow with the archive.
        with tarfile.open(fileobj=archive, mode="r|gz") as tar:
            for member in tar:
                self._entries += 1
                if self._entries > MAX_ENTRIES:
                    raise CannotUnpack(f"the upload has more than {MAX_ENTRIES:,} files")
                self._make(tar, member)
                tar.members = []  # type: ignore[attr-defined]  # tarfile remembers every entry

    def _make(self, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        parts = _parts(member.name)
        if not parts:
            return  # the directory itself
        with self._parent(parts[:-1]) as parent_fd:
            name = parts[-1]
            if member.isdir():
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, 0o755, dir_fd=parent_fd)
            elif member.issym():
                os.symlink(member.linkname, name, dir_fd=parent_fd)
            elif member.isreg():
                self._write(tar, member, name, parent_fd)
            else:
                raise CannotUnpack(
                    f"the upload contains {member.name!r}, which is no file, directory or link"
                )

    def _write(self, tar: tarfile.TarFile, member: tarfile.TarInfo, name: str, parent_fd: int) -> None:
        self._left_bytes -= member.size
        if self._left_bytes < 0:
            raise CannotUnpack("the upload unpacks to more bytes than allowed")
        content = tar.extractfile(member)
        if content is None:
            raise CannotUnpack(f"the upload contains no content of {member.name!r}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(name, flags, 0o600, dir_fd=parent_fd), "wb") as file:
            while piece := content.read(_PIECE_BYTES):
                file.write(piece)
            file.flush()  # a later write would change the time
            os.fchmod(file.fileno(), 0o755 if member.mode & stat.S_IXUSR else 0o644)
            os.utime(file.fileno(), (member.mtime, member.mtime))

    @contextlib.contextmanager
    def _parent(self, parts: list[str]) -> Iterator[int]:
        """An open directory, made if needed. A link in the path is an error."""
        fd = os.dup(self._root_fd)
        try:
            for part in parts:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, 0o755, dir_fd=fd)
                flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
                below = os.open(part, flags, dir_fd=fd)
                os.close(fd)
                fd = below
            yield fd
        finally:
            os.close(fd)


def _parts(name: str) -> list[str]:
    parts = [part for part in name.split("/") if part not in {"", "."}]
    if name.startswith("/") or ".." in parts or "\0" in name or len(parts) > _MAX_DEPTH:
        raise CannotUnpack(f"the upload contains {name[:200]!r}, a path that leads out of the project")
    return parts


def _refuse_links_out(root: str) -> None:
    """After unpacking: only then is it known where a chain of links leads."""
    inside = os.path.realpath(root)
    for folder, folders, files in os.walk(root):
        for name in (*folders, *files):
            path = os.path.join(folder, name)  # noqa: PTH118 - many entries
            if os.path.islink(path):  # noqa: PTH114 - the same
                target = os.path.realpath(path)
                if target != inside and not target.startswith(inside + "/"):
                    shown = os.path.relpath(path, root)
                    raise CannotUnpack(
                        f"the upload contains the link {shown!r}, which leads out of the project"
                    )
