"""The output of a task on disk: files named by the offset of their first byte. Standard library only.

When an attempt exceeds its cap, the oldest files except the first are deleted: the first and the last
bytes are always there.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from dgpu.agent.marks import STDOUT, MarkWriter

DEFAULT_CAP_BYTES = 1024**3
_FILES_PER_CAP = 16


class ChunkWriter:
    """Appends and never fails: on a full disk the bytes are dropped, and a mark says how many."""

    def __init__(self, directory: Path, cap_bytes: int = DEFAULT_CAP_BYTES) -> None:
        self._directory = directory
        self._cap_bytes = max(cap_bytes, _FILES_PER_CAP)
        self._file_bytes = self._cap_bytes // _FILES_PER_CAP
        self._fd = -1
        self._starts: list[int] = []
        self._marks = MarkWriter(directory)
        self._stream = STDOUT
        self.total_bytes = 0
        self.dropped_bytes = 0

    @classmethod
    def resume(cls, directory: Path, cap_bytes: int = DEFAULT_CAP_BYTES) -> ChunkWriter:
        """Continues after the bytes that are there, if any."""
        writer = cls(directory, cap_bytes)
        _, end = extent(directory)
        if end:
            writer._starts = _starts(directory)
            writer.total_bytes = end
            writer._marks.resume()
        return writer

    def append(self, output: bytes, stream: int = STDOUT) -> None:
        self._stream = stream
        if self.dropped_bytes:
            if not self._write(dropped_mark(self.dropped_bytes)):
                self.dropped_bytes += len(output)
                return
            self.dropped_bytes = 0
        view = memoryview(output)
        while view:
            room = self._file_bytes - (self.total_bytes - self._starts[-1]) if self._starts else 0
            piece = view[: room if room > 0 else self._file_bytes]
            if not self._write(piece):
                self.dropped_bytes += len(view)
                return
            view = view[len(piece) :]

    def close(self) -> None:
        """Bytes still in `dropped_bytes` afterwards have no mark in the files."""
        if self.dropped_bytes and self._write(dropped_mark(self.dropped_bytes)):
            self.dropped_bytes = 0
        self._close_file()
        self._marks.close()

    def _close_file(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _write(self, piece: bytes | memoryview) -> bool:
        try:
            if self._fd < 0 or self.total_bytes - self._starts[-1] >= self._file_bytes:
                self._next_file()
            self._marks.note(self.total_bytes, time.time_ns() // 1_000_000, self._stream)
            written = os.write(self._fd, piece)
        except OSError:
            return False
        self.total_bytes += written
        return written == len(piece)

    def _next_file(self) -> None:
        if not self._starts:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
        fd = os.open(self._directory / f"{self.total_bytes:016d}", flags, 0o600)
        self._close_file()
        self._fd = fd
        if not self._starts or self._starts[-1] != self.total_bytes:
            self._starts.append(self.total_bytes)
        while len(self._starts) > _FILES_PER_CAP:
            oldest = self._starts.pop(1)
            with contextlib.suppress(OSError):
                (self._directory / f"{oldest:016d}").unlink()


def thin(directory: Path) -> None:
    """Deletes all files except the first and the last."""
    for start in _starts(directory)[1:-1]:
        with contextlib.suppress(OSError):
            (directory / f"{start:016d}").unlink()


def size(directory: Path) -> int:
    """Bytes in the files."""
    total = 0
    for start in _starts(directory):
        with contextlib.suppress(OSError):
            total += (directory / f"{start:016d}").stat().st_size
    return total


def dropped_mark(count: int) -> bytes:
    return b"\n[dgpu: %d bytes of output dropped, no room on disk]\n" % count


def extent(directory: Path) -> tuple[int, int]:
    """First kept offset and end of an attempt's output; (0, 0) for no output."""
    starts = _starts(directory)
    for last in reversed(starts):
        with contextlib.suppress(OSError):
            return starts[0], last + (directory / f"{last:016d}").stat().st_size
    return 0, 0


def read_at(directory: Path, offset: int, max_bytes: int) -> tuple[int, bytes]:
    """Bytes from `offset` on, or from the first kept byte if `offset` was deleted. Empty at the end."""
    starts = _starts(directory)
    for number, start in enumerate(starts):
        following = starts[number + 1] if number + 1 < len(starts) else None
        if following is not None and following <= offset:
            continue
        begin = max(start, offset)
        try:
            with (directory / f"{start:016d}").open("rb") as file:
                file.seek(begin - start)
                found = file.read(max_bytes)
        except OSError:
            continue  # deleted meanwhile
        if found or following is None:
            return begin, found
    return offset, b""


def _starts(directory: Path) -> list[int]:
    try:
        return sorted(int(entry.name) for entry in directory.iterdir() if entry.name.isdigit())
    except OSError:
        return []
