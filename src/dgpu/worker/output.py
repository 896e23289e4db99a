"""Descriptors 1 and 2 of this process are pipes, so that output of C code and of child processes is seen, too.

Bytes that arrive while a call runs belong to the call. Other bytes go to the descriptors that the process was
started with: they are the worker's own output. A full pipe blocks the function that prints, which bounds memory.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import sys
from typing import Final

# The largest that an ordinary user may have. C code that prints with Python's lock held blocks when it is full.
PIPE_BYTES: Final = 1 << 20
STREAMS: Final = (1, 2)
_HIGH: Final = 100  # out of the way of code that closes low descriptors
_NAMES: Final = {1: "stdout", 2: "stderr"}


class CapturedOutput:
    def __init__(self) -> None:
        self._own = {stream: fcntl.fcntl(stream, fcntl.F_DUPFD_CLOEXEC, _HIGH) for stream in STREAMS}
        self._writers: dict[int, int] = {}
        self._marks: dict[int, tuple[int, int]] = {}
        self._texts: dict[int, io.TextIOWrapper] = {}
        self.readers: dict[int, int] = {}  # descriptor to stream
        for stream in STREAMS:
            reader, writer = (_moved_up(fd) for fd in os.pipe2(os.O_CLOEXEC))
            os.set_blocking(reader, False)
            with contextlib.suppress(OSError):  # beyond the user's limit it stays at 64 KiB
                fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
            self._writers[stream] = writer
            self.readers[reader] = stream
            self._connect(stream)

    def read(self, reader: int) -> bytes:
        """All that is in a pipe now, or nothing."""
        try:
            return os.read(reader, PIPE_BYTES)
        except BlockingIOError:
            return b""

    def pass_on(self, stream: int, data: bytes) -> None:
        """Output between calls goes where the worker's output goes. It is lost if that is closed."""
        left = memoryview(data)
        with contextlib.suppress(OSError):
            while left:
                left = left[os.write(self._own[stream], left) :]

    def flush(self) -> None:
        """Text that Python holds for this call is put into the pipes. Also mends what the function has closed."""
        for stream in STREAMS:
            text = self._texts[stream]
            with contextlib.suppress(OSError, ValueError):
                text.flush()
            if not _is(stream, self._marks[stream]) or text.closed:
                self._connect(stream)
            elif getattr(sys, _NAMES[stream]) is not text:
                setattr(sys, _NAMES[stream], text)

    def release(self) -> None:
        """The descriptors of the start again, for the last words of this process."""
        self.flush()
        for reader, stream in self.readers.items():
            self.pass_on(stream, self.read(reader))
            os.dup2(self._own[stream], stream)

    def _connect(self, stream: int) -> None:
        os.dup2(self._writers[stream], stream)
        status = os.fstat(stream)
        self._marks[stream] = status.st_dev, status.st_ino
        # By line: what a function prints can be followed while it runs.
        text = open(stream, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115
        self._texts[stream] = text
        setattr(sys, _NAMES[stream], text)


def _is(fd: int, mark: tuple[int, int]) -> bool:
    try:
        status = os.fstat(fd)
    except OSError:
        return False
    return (status.st_dev, status.st_ino) == mark


def _moved_up(fd: int) -> int:
    high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _HIGH)
    os.close(fd)
    return high
