"""Copies of a task's output in files of the task's user. Standard library only.

The child that becomes the task opens the files, with the rights of the task's user and in the task's directory, and
sends them to the scribe. The scribe gets them before the first byte of output, because the child sends them before its
program starts. A thread for each file writes it: a dead file system stops only this thread, and the task as soon as a
few megabytes wait, as if the task itself wrote the file.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import socket
import stat
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from dgpu.agent.marks import STDERR
from dgpu.agent.spawn import CannotStart, one_line

MAX_WAITING_BYTES = 4 * 1024 * 1024  # of one file
_CLOSE_SECONDS = 1.0  # the end of a task waits so long for its files
_PATIENCE_SECONDS = 60.0  # between two waits that were in vain
_NULL_DEVICE = os.makedev(1, 3)
_CAPABILITY_VERSION = 0x20080522
_NONE = "-"
_libc = ctypes.CDLL(None, use_errno=True)


class OutputFiles(NamedTuple):
    """What to open. Empty paths: none. Without a path of its own, stderr goes to the file of stdout."""

    output: str
    errors: str
    anew: bool  # otherwise, it is continued


def output_files_of(order: dict[str, Any]) -> OutputFiles | None:
    given = order.get("files")
    if not given:
        return None
    output = given.get("output", "")
    return OutputFiles(output, given.get("errors", "") or output, given["anew"])


def send_files(files: OutputFiles, link: socket.socket) -> CannotStart | None:
    """Runs in the child, in the task's directory and as the task's user."""
    opened: dict[str, int | None] = {"": None}
    for path in (files.output, files.errors):
        if path not in opened:
            try:
                opened[path] = _open(path, anew=files.anew)
            except (OSError, ValueError) as error:
                why = error.strerror if isinstance(error, OSError) else str(error)
                return _no_file(path, why)
    descriptors = sorted({fd for fd in opened.values() if fd is not None})
    if descriptors:
        chosen = (opened[files.output], opened[files.errors])
        places = [_NONE if fd is None else str(descriptors.index(fd)) for fd in chosen]
        socket.send_fds(link, ["".join(places).encode()], descriptors)
    return None


def _open(path: str, *, anew: bool) -> int | None:
    """None: the null device. Raises OSError."""
    # Without a reader, a named pipe would block the start.
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    fd = os.open(path, flags, 0o666)
    found = os.fstat(fd)
    if stat.S_ISCHR(found.st_mode) and found.st_rdev == _NULL_DEVICE:
        os.close(fd)
        return None
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "Not a regular file")
    if anew:
        os.ftruncate(fd, 0)
    return fd


def _no_file(path: str, why: str | None) -> CannotStart:
    help_text = (
        "Its directory must exist on the node, and the task must be allowed to write there. A relative path begins in "
        "the working directory"
    )
    return CannotStart("cannot_start", 126, f"output file {one_line(path)}: {why}. {help_text}")


class Copies:
    """The files of one run, in the scribe."""

    def __init__(self, link: int, when_free: Callable[[], None]) -> None:
        self._link: socket.socket | None = socket.socket(fileno=link)
        self._link.setblocking(False)
        self._when_free = when_free  # called by a thread
        self._files: tuple[_File | None, _File | None] = (None, None)

    def append(self, output: bytes, stream: int) -> None:
        self._receive()
        if (file := self._files[1 if stream == STDERR else 0]) is not None:
            file.append(output)

    @property
    def is_full(self) -> bool:
        return any(file is not None and file.is_full for file in self._files)

    def note(self) -> bytes:
        """What the readers of the task's output should know: each failure once."""
        names = zip(("output", "error"), self._files, strict=True)
        return b"".join(file.take_failure(name) for name, file in names if file is not None)

    def close(self) -> None:
        self._receive()
        self._unlink()
        for file in dict.fromkeys(self._files):
            if file is not None:
                file.close()

    def _receive(self) -> None:
        if self._link is None:
            return
        try:
            places, descriptors, _, _ = socket.recv_fds(self._link, 16, 2)
        except BlockingIOError:
            return
        except OSError:
            places, descriptors = b"", []
        self._unlink()
        if len(places) == 2:
            files = [_File(fd, self._when_free) for fd in descriptors]
            first, second = (None if place == _NONE else files[int(place)] for place in places.decode())
            self._files = (first, second)

    def _unlink(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None


class _File:
    _no_waits_before = 0.0  # of all files: a dead file system must not delay the ends of many tasks

    def __init__(self, fd: int, when_free: Callable[[], None]) -> None:
        self._fd = fd
        self._when_free = when_free
        self._waiting = bytearray()
        self._changed = threading.Condition()
        self._is_closed = False
        self._failure = ""
        self._was_told = False
        self._thread = threading.Thread(target=self._write_all, daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:  # the system has no room for another thread
            self._fail(str(error))
            os.close(fd)

    @property
    def is_full(self) -> bool:
        return len(self._waiting) >= MAX_WAITING_BYTES

    def append(self, output: bytes) -> None:
        with self._changed:
            if not self._failure:
                self._waiting += output
                self._changed.notify()

    def take_failure(self, name: str) -> bytes:
        if not self._failure or self._was_told:
            return b""
        self._was_told = True
        return f"\n[dgpu: the {name} file is incomplete: {self._failure}]\n".encode()

    def close(self) -> None:
        """Waits a little. Bytes that are not written by then still follow."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        if self._thread.ident is None or time.monotonic() < _File._no_waits_before:
            return
        self._thread.join(_CLOSE_SECONDS)
        if self._thread.is_alive():
            _File._no_waits_before = time.monotonic() + _PATIENCE_SECONDS

    def _write_all(self) -> None:
        _give_up_rights()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_closed)
                taken, self._waiting = self._waiting, bytearray()
            if not taken:
                break
            if len(taken) >= MAX_WAITING_BYTES:
                self._when_free()
            try:
                _write(self._fd, taken)
            except OSError as error:
                self._fail(error.strerror or str(error))
                self._when_free()
                break
        with contextlib.suppress(OSError):
            os.close(self._fd)

    def _fail(self, why: str) -> None:
        with self._changed:
            self._failure = why
            self._waiting.clear()


def _write(fd: int, output: bytearray) -> None:
    view = memoryview(output)
    while view:
        view = view[os.write(fd, view) :]


def _give_up_rights() -> None:
    """Of this thread: as root, it could exceed the quota of the task's user."""
    _libc.capset((ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)())
