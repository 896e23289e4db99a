"""Large answers: built one at a time, each connection in its turn, and bounded while clients do not read.

A page of 1,000 tasks takes as long as fifty small answers. Connections that request such pages wait for each other
here, while small requests pass. The total of unread pages is bounded: beyond it, the connections that have not read for
longest are closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import time
from collections.abc import AsyncIterator, Callable
from urllib.parse import parse_qsl

MAX_UNSENT_BYTES = 32 << 20  # over all connections; one connection has at most one answer
SLOW_AFTER_SECONDS = 1.0  # a client without progress for this long may be closed when too much is unsent
MAX_ROOM_SECONDS = 3.0  # then the longest unsent answer is dropped, even if its client reads a little
LARGE_LIMIT = 100  # entries of a page: a larger page waits for its turn
_LOOK_AGAIN_SECONDS = 0.05
_TRIM_FROM_BYTES = 8 << 20


class UnsentAnswer:
    """The unread part of one connection's answer."""

    __slots__ = ("abort", "began_s", "bytes_left", "progress_s", "size")

    def __init__(self, bytes_left: Callable[[], int], abort: Callable[[], None]) -> None:
        self.bytes_left = bytes_left
        self.abort = abort
        self.size = bytes_left()
        self.began_s = self.progress_s = time.monotonic()

    def idle_seconds(self, now_s: float) -> float:
        left = self.bytes_left()
        if left != self.size:
            self.size, self.progress_s = left, now_s
        return now_s - self.progress_s


class Turns:
    def __init__(self) -> None:
        self._turn = asyncio.Lock()  # first come, first served; a connection has one request at a time
        self._unsent: dict[UnsentAnswer, None] = {}
        self._peak = 0
        self.waiting = 0

    @contextlib.asynccontextmanager
    async def one(self, is_gone: Callable[[], bool]) -> AsyncIterator[None]:
        """Raises ConnectionResetError if the connection ended while it waited."""
        self.waiting += 1
        try:
            await self._turn.acquire()
        finally:
            self.waiting -= 1
        try:
            await self._make_room(is_gone)
            if is_gone():
                raise ConnectionResetError("the client left before its turn")
            yield
        finally:
            self._turn.release()

    def unsent_bytes(self) -> int:
        return sum(answer.bytes_left() for answer in self._unsent)

    def paused(self, answer: UnsentAnswer) -> None:
        """The kernel takes no more bytes for this connection."""
        self._unsent[answer] = None
        self._peak = max(self._peak, self.unsent_bytes())

    def resumed(self, answer: UnsentAnswer) -> None:
        """The bytes are sent, or the connection is gone."""
        self._unsent.pop(answer, None)
        if not self._unsent and self._peak >= _TRIM_FROM_BYTES:
            self._peak = 0
            asyncio.get_running_loop().call_later(1.0, _give_memory_back)

    async def _make_room(self, is_gone: Callable[[], bool]) -> None:
        """The longest unread answers are dropped first. Clients that read get a moment to continue."""
        began_s = time.monotonic()
        while self._unsent and self.unsent_bytes() > MAX_UNSENT_BYTES and not is_gone():
            now_s = time.monotonic()
            slowest = max(self._unsent, key=lambda answer: answer.idle_seconds(now_s))
            if now_s - began_s >= MAX_ROOM_SECONDS:
                slowest = min(self._unsent, key=lambda answer: answer.began_s)
            elif slowest.idle_seconds(now_s) < SLOW_AFTER_SECONDS:
                await asyncio.sleep(_LOOK_AGAIN_SECONDS)
                continue
            self._unsent.pop(slowest, None)
            slowest.abort()


def _give_memory_back() -> None:
    """The C library keeps freed memory below any block in use; after a burst of large answers that is most of it."""
    with contextlib.suppress(AttributeError, OSError):  # another libc
        ctypes.CDLL(None).malloc_trim(0)


_PAGED = frozenset({"/api/v1/tasks", "/api/v1/queue"})


def is_large(method: str, path: str, query: bytes) -> bool:
    """Whether the answer to this request waits for its turn."""
    if method != "GET":
        return False
    if path in _PAGED:
        return b"limit" in query and _limit_of(query) > LARGE_LIMIT
    return path.startswith("/api/v1/history/")


def _limit_of(query: bytes) -> int:
    given = dict(parse_qsl(query[:1_000].decode("latin-1"))).get("limit", "")
    return int(given) if given.isascii() and given.isdigit() and len(given) < 10 else 0
