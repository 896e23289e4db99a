"""Chooses lines of output: by time, text and stream; and writes the time before each. Bytes in, bytes out."""

from __future__ import annotations

import datetime as dt
from collections import deque
from collections.abc import AsyncIterator, Iterator
from typing import NamedTuple

import msgspec

from dgpu.service.task_output.marked import Mark, MarkedBytes, marks_in

MAX_TAIL_BYTES = 4 << 20
MAX_LINE_BYTES = 64 << 10  # a longer line counts as several
_NO_TIME = b"-".ljust(24)


class NoMarks(Exception):  # noqa: N818 - the name states the failure
    """The output has no times: a version that recorded none wrote it."""


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    since_ms: int | None = None  # wall clock
    text: bytes = b""  # that a line contains
    times: bool = False
    stream: str = ""  # stdout or stderr; empty: both
    head: int | None = None  # lines
    tail: int | None = None

    @property
    def needs_marks(self) -> bool:
        return self.since_ms is not None or self.times or bool(self.stream)

    @property
    def is_plain(self) -> bool:
        return not (self.needs_marks or self.text or self.head is not None)


async def chosen_lines(pieces: AsyncIterator[bytes], wanted: Wanted) -> AsyncIterator[bytes]:
    """Raises NoMarks."""
    chooser = LineChooser(wanted)
    async for piece in pieces:
        yield chooser.feed(piece)
        if chooser.is_done:
            return
    yield chooser.finish()


async def last_lines(pieces: AsyncIterator[bytes], lines: int, *, follows: bool) -> AsyncIterator[bytes]:
    """The first piece of a followed tail contains the earlier output; a finished output is cut as a whole."""
    if follows:
        async for piece in pieces:
            yield tail_of(piece, lines)
            break
        async for piece in pieces:
            yield piece
        return
    yield tail_of(b"".join([piece async for piece in pieces]), lines)


def tail_of(text: bytes, lines: int) -> bytes:
    if lines == 0:
        return text[len(text) :]
    place = len(text) - 1 if text.endswith(b"\n") else len(text)
    for _ in range(lines):
        place = text.rfind(b"\n", 0, place)
        if place < 0:
            return text
    return text[place + 1 :]


class _Line(NamedTuple):
    mark: Mark | None
    content: bytearray


class LineChooser:
    """Lines of the two streams are put together separately, so that neither cuts the other."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._mark: Mark | None = None
        self._open: dict[bool, _Line] = {}
        self._left = wanted.head
        self._last: deque[bytes] | None = None if wanted.tail is None else deque()
        self._last_bytes = 0

    @property
    def is_done(self) -> bool:
        """The first lines are complete: no more input is needed."""
        return self._left == 0

    def feed(self, piece: bytes) -> bytes:
        """Raises NoMarks."""
        chosen = bytearray()
        for mark, part in self._parts(piece):
            if (
                self._wanted.stream
                and mark is not None
                and mark.is_stderr != (self._wanted.stream == "stderr")
            ):
                continue
            for line in self._lines(mark, part):
                chosen += self._take(line)
        return bytes(chosen)

    def finish(self) -> bytes:
        """The unfinished lines, and the last lines if only those are wanted."""
        chosen = bytearray()
        for line in self._open.values():
            chosen += self._take(line)
        self._open.clear()
        return bytes(chosen) + b"".join(self._last or ())

    def _parts(self, piece: bytes) -> Iterator[tuple[Mark | None, bytes]]:
        """The piece cut at its marks. A line of dgpu itself, about a gap, has none."""
        if not isinstance(piece, MarkedBytes):
            yield None, piece
            return
        if not piece.marks and self._mark is None and self._wanted.needs_marks and piece:
            raise NoMarks
        done = piece.offset
        for mark in marks_in(piece.marks):
            if mark.offset > done:
                yield self._mark, bytes(piece[done - piece.offset : mark.offset - piece.offset])
                done = min(mark.offset, piece.offset + len(piece))
            self._mark = mark
        yield self._mark, bytes(piece[done - piece.offset :])

    def _lines(self, mark: Mark | None, part: bytes) -> Iterator[_Line]:
        stream = mark is not None and mark.is_stderr
        for text in _split(part):
            line = self._open.pop(stream, None) or _Line(mark, bytearray())
            line.content.extend(text)
            if text.endswith(b"\n") or len(line.content) >= MAX_LINE_BYTES:
                yield line
            else:
                self._open[stream] = line

    def _take(self, line: _Line) -> bytes:
        wanted = self._wanted
        is_old = wanted.since_ms is not None and line.mark is not None and line.mark.wall_ms < wanted.since_ms
        if self._left == 0 or is_old or wanted.text not in line.content:
            return b""
        if self._left is not None:
            self._left -= 1
        shown = bytes(line.content)
        if wanted.times:
            shown = (_time_text(line.mark.wall_ms) if line.mark is not None else _NO_TIME) + b" " + shown
        if self._last is None:
            return shown
        self._keep_last(shown)
        return b""

    def _keep_last(self, shown: bytes) -> None:
        if self._last is None or not self._wanted.tail:
            return
        self._last.append(shown)
        self._last_bytes += len(shown)
        while len(self._last) > self._wanted.tail or self._last_bytes > MAX_TAIL_BYTES:
            self._last_bytes -= len(self._last.popleft())


def _split(part: bytes) -> list[bytes]:
    """At line feeds only: a carriage return draws a progress bar over itself."""
    *whole, rest = part.split(b"\n")
    return [each + b"\n" for each in whole] + ([rest] if rest else [])


def _time_text(wall_ms: int) -> bytes:
    at = dt.datetime.fromtimestamp(wall_ms / 1_000, dt.UTC)
    return f"{at:%Y-%m-%dT%H:%M:%S}.{wall_ms % 1_000:03d}Z".encode()
