"""When output was written, and to which stream: marks in a file beside it. Standard library only.

A mark holds from its offset to the next one. Marks of equal streams are at least a tenth of a second apart, and further
with many of them, so the file stays small. Output of a version without marks has no such file.
"""

from __future__ import annotations

import bisect
import contextlib
import os
import struct
from pathlib import Path

MARKS_NAME = "marks"
STDOUT, STDERR = 0, 1
FILES = 2  # no stream: a socket that brings the files with copies of both
MARK = struct.Struct("<QQ")  # offset; time in ms << 1 | stream
MAX_READ = 4_096  # marks of one read
_STEP_MS = 100
_MARKS_PER_STEP = 8_192  # then marks are twice as far apart
_MAX_MARKS = 262_144


class MarkWriter:
    """Never fails: without room, marks are left out."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / MARKS_NAME
        self._fd = -1
        self._count = 0
        self._last_ms = 0
        self._last_stream = -1

    def resume(self) -> None:
        """Continues after the marks that are there."""
        with contextlib.suppress(OSError):
            self._count = self._path.stat().st_size // MARK.size

    def note(self, offset: int, now_ms: int, stream: int) -> None:
        """Called before the bytes at `offset` are written, and after their directory was made."""
        apart_ms = _STEP_MS << (self._count // _MARKS_PER_STEP)
        is_near = 0 <= now_ms - self._last_ms < apart_ms
        if self._count >= _MAX_MARKS or (stream == self._last_stream and is_near):
            return
        with contextlib.suppress(OSError):
            if self._fd < 0:
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
                self._fd = os.open(self._path, flags if self._count else flags | os.O_TRUNC, 0o600)
            if os.write(self._fd, MARK.pack(offset, now_ms << 1 | stream)) == MARK.size:
                self._count += 1
                self._last_ms, self._last_stream = now_ms, stream

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def read_marks(directory: Path, begin: int, end: int) -> bytes:
    """The mark that holds at `begin`, and those up to `end`; empty: there are none."""
    try:
        with (directory / MARKS_NAME).open("rb") as file:
            count = os.fstat(file.fileno()).st_size // MARK.size
            fd = file.fileno()
            first = max(0, bisect.bisect_right(_Offsets(fd, count), begin) - 1)
            found = os.pread(fd, MARK.size * min(count - first, MAX_READ), first * MARK.size)
    except OSError:
        return b""
    length = len(found) - len(found) % MARK.size
    behind = bisect.bisect_left([offset for offset, _ in MARK.iter_unpack(found[:length])], end)
    return found[: behind * MARK.size]


class _Offsets:
    """The offsets in the file as a sequence, for a binary search."""

    def __init__(self, fd: int, count: int) -> None:
        self._fd = fd
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> int:
        found = os.pread(self._fd, MARK.size, number * MARK.size)
        return MARK.unpack(found)[0] if len(found) == MARK.size else 1 << 62
