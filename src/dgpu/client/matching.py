"""Lines of output that match a regular expression. Here and not at the scheduler: a pattern may take any time."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import AsyncGenerator, Generator, Iterable

from dgpu.client.errors import BadRequest

_MAX_LINE_BYTES = 1 << 20


class MatchingLines:
    def __init__(self, pattern: str, *, head: int | None = None, tail: int | None = None) -> None:
        """Raises BadRequest for a wrong pattern."""
        try:
            self._pattern = re.compile(pattern.encode("utf-8", "surrogateescape"))
        except re.error as error:
            raise BadRequest(f"grep: {pattern!r} is no regular expression: {error}.") from None
        self._left = head
        self._last: deque[bytes] | None = None if tail is None else deque(maxlen=tail)
        self._open = b""

    @property
    def is_done(self) -> bool:
        return self._left == 0

    def feed(self, piece: bytes) -> bytes:
        *lines, self._open = (self._open + piece).split(b"\n")
        chosen = [self._take(line + b"\n") for line in lines]
        if len(self._open) > _MAX_LINE_BYTES:
            chosen.append(self._take(self._open))
            self._open = b""
        return b"".join(chosen)

    def finish(self) -> bytes:
        rest = self._take(self._open) if self._open else b""
        self._open = b""
        return rest + b"".join(self._last or ())

    def _take(self, line: bytes) -> bytes:
        if self._left == 0 or not self._pattern.search(line):
            return b""
        if self._left is not None:
            self._left -= 1
        if self._last is None:
            return line
        self._last.append(line)
        return b""


def matching(pieces: Iterable[bytes], lines: MatchingLines) -> Generator[bytes, None, None]:
    for piece in pieces:
        if chosen := lines.feed(piece):
            yield chosen
        if lines.is_done:
            return
    if rest := lines.finish():
        yield rest


async def matching_later(pieces: AsyncGenerator[bytes], lines: MatchingLines) -> AsyncGenerator[bytes]:
    """The same for pieces that are awaited."""
    try:
        async for piece in pieces:
            if chosen := lines.feed(piece):
                yield chosen
            if lines.is_done:
                return
        if rest := lines.finish():
            yield rest
    finally:
        await pieces.aclose()
