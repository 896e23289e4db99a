"""Files below the directory of a task. Runs in threads: any call here may hang on a dead mount.

A path is walked entry by entry from an open directory, and no step follows a link by itself. A link whose target stays
below the directory is resolved by the same walk; a link that leads out is refused. A task may change its tree at any
time: at worst the walk fails, it never leaves the directory.
"""

from __future__ import annotations

import contextlib
import heapq
import os
import stat
from collections.abc import Iterator
from typing import NamedTuple

from dgpu.agent.as_user import files_as
from dgpu.agent.launch_as import Account

MAX_PATH_BYTES = 4_096
MAX_DEPTH = 100  # open descriptors of one walk
MAX_LINKS = 16
MAX_SCANNED = 1_000_000  # entries of one directory
_ENTRY = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC


class FilesError(Exception):
    """`code` is for programs; the text is for people."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code


class Root(NamedTuple):
    """Of an agent that is root, files are read with the rights of the task's Unix user."""

    path: str
    is_own: bool = False  # created for the run: a link in its place is refused
    account: Account | None = None  # None: the owner of a run's own directory, else the agent's user


class Entry(NamedTuple):
    name: bytes
    kind: str  # file, directory, link or other
    size_bytes: int
    modified_ms: int
    target: bytes = b""  # of a link


class Page(NamedTuple):
    entries: list[Entry]
    more: bool


class OpenedFile(NamedTuple):
    fd: int
    entry: Entry


def list_files(root: Root, path: bytes, *, after: bytes, limit: int) -> Page:
    """Entries of a directory by name, after the name `after`. For a file, the file itself."""
    with _below(root, path) as fd, _readable_errors(path):
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            return Page([_entry_of_fd(fd, b"")], more=False)  # its name is in the path
        directory = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=fd)
        try:
            names = heapq.nsmallest(limit + 1, (name for name in _names(directory) if name > after))
            entries = [entry for name in names[:limit] if (entry := _entry(name, directory)) is not None]
        finally:
            os.close(directory)
        return Page(entries, more=len(names) > limit)


def open_file(root: Root, path: bytes) -> OpenedFile:
    """A regular file, open for reading. The caller must close the descriptor."""
    with _below(root, path) as fd, _readable_errors(path):
        entry = _entry_of_fd(fd, _last_part(path))
        if entry.kind == "directory":
            raise FilesError("is_directory", f"{shown(path)} is a directory")
        if entry.kind != "file":
            raise FilesError("not_a_file", f"{shown(path)} is neither a file nor a directory")
        # Through the descriptor: the name may belong to another file by now.
        return OpenedFile(os.open(f"/proc/self/fd/{fd}", _FILE), entry)


def shown(path: bytes) -> str:
    """One printable line."""
    text = path.decode(errors="replace") or "."
    return "".join(character if character.isprintable() else "?" for character in text[:500])


@contextlib.contextmanager
def _below(root: Root, path: bytes) -> Iterator[int]:
    """An O_PATH descriptor of the entry that `path` leads to, with the rights of the task's user.

    A link of a task, or a directory on the way, must not lead root to files that the task may not read. Only a run's
    own directory is entered as root: it may be in a directory of the agent, which its user cannot enter.
    """
    parts = _parts(path)
    with _readable_errors(path), contextlib.ExitStack() as held:
        if root.account is not None:
            held.enter_context(files_as(*root.account[:3]))
        opened = [_open_top(root)]
        held.callback(_close_all, opened)
        if root.account is None and root.is_own and os.geteuid() == 0:
            owner = os.fstat(opened[0])
            held.enter_context(files_as(owner.st_uid, owner.st_gid))
        yield _walk(opened, parts, path)


def _close_all(opened: list[int]) -> None:
    for fd in opened:
        os.close(fd)


def _open_top(root: Root) -> int:
    try:
        link = os.O_NOFOLLOW if root.is_own else 0
        return os.open(root.path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC | link)
    except (FileNotFoundError, NotADirectoryError):
        raise FilesError("directory_gone", f"the directory {root.path} no longer exists") from None


def _parts(path: bytes) -> list[bytes]:
    if len(path) > MAX_PATH_BYTES or b"\0" in path:
        raise FilesError("bad_path", f"a path has at most {MAX_PATH_BYTES} bytes and no NUL")
    parts = [part for part in path.split(b"/") if part not in {b"", b"."}]
    if path.startswith(b"/") or b".." in parts:
        raise FilesError("bad_path", "a path is relative to the task's directory and has no `..`")
    return parts


def _walk(opened: list[int], parts: list[bytes], path: bytes) -> int:
    """`opened` holds the descriptors of all directories on the path, and finally the entry itself."""
    left = parts[::-1]
    links = 0
    while left:
        part = left.pop()
        if part in {b"", b"."}:
            continue
        if part == b"..":  # of a link
            if len(opened) == 1:
                raise _leads_out(path)
            os.close(opened.pop())
            continue
        if len(opened) > MAX_DEPTH:
            raise FilesError("bad_path", f"{shown(path)} is more than {MAX_DEPTH} directories deep")
        fd = os.open(part, _ENTRY, dir_fd=opened[-1])
        if not stat.S_ISLNK(os.fstat(fd).st_mode):
            opened.append(fd)
            continue
        target = _target(fd)
        os.close(fd)
        links += 1
        if target.startswith(b"/") or links > MAX_LINKS:
            raise _leads_out(path)
        left += target.split(b"/")[::-1]
    return opened[-1]


def _leads_out(path: bytes) -> FilesError:
    return FilesError("leads_out", f"{shown(path)} is a link that leads out of the task's directory")


@contextlib.contextmanager
def _readable_errors(path: bytes) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        raise FilesError("not_found", f"there is no {shown(path)}") from None
    except PermissionError:
        raise FilesError("not_readable", f"the agent may not read {shown(path)}") from None
    except OSError as error:
        raise FilesError("unreadable", f"{shown(path)}: {error.strerror}") from None


def _names(directory: int) -> Iterator[bytes]:
    with os.scandir(directory) as entries:
        for number, entry in enumerate(entries):
            if number >= MAX_SCANNED:
                raise FilesError("too_many_files", f"more than {MAX_SCANNED:,} entries in one directory")
            yield os.fsencode(entry.name)


def _entry(name: bytes, directory: int) -> Entry | None:
    try:
        fd = os.open(name, _ENTRY, dir_fd=directory)
    except OSError:
        return None  # gone since
    try:
        return _entry_of_fd(fd, name)
    finally:
        os.close(fd)


def _entry_of_fd(fd: int, name: bytes) -> Entry:
    found = os.fstat(fd)
    kind = _KINDS.get(stat.S_IFMT(found.st_mode), "other")
    target = _target(fd) if kind == "link" else b""
    size = found.st_size if kind == "file" else 0
    return Entry(name, kind, size, found.st_mtime_ns // 1_000_000, target)


_KINDS = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "link"}


def _target(fd: int) -> bytes:
    """The target of the link behind the descriptor, even if its name belongs to another file now."""
    return os.readlink(b"", dir_fd=fd)


def _last_part(path: bytes) -> bytes:
    return path.rstrip(b"/").rpartition(b"/")[2]
