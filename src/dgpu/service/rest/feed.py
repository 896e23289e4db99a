"""Events for many listeners: each group is encoded once. A slow listener gets a notice of the gap."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable

from dgpu.service.machine.outputs import CommittedGroup
from dgpu.service.views.events import event_stream_text
from dgpu.service.views.views import Views

MAX_UNREAD = 512  # pieces of one listener
MAX_UNREAD_BYTES = 1 << 20
_BEAT = b": still here\n\n"


class _Listener:
    __slots__ = ("arrived", "lagged", "pieces", "unread_bytes")

    def __init__(self) -> None:
        self.pieces: deque[bytes] = deque()
        self.unread_bytes = 0
        self.lagged = False
        self.arrived = asyncio.Event()

    def offer(self, piece: bytes) -> None:
        if len(self.pieces) >= MAX_UNREAD or self.unread_bytes + len(piece) > MAX_UNREAD_BYTES:
            # Its unread events are stale: it must read everything again.
            self.pieces.clear()
            self.unread_bytes = 0
            self.lagged = True
        else:
            self.pieces.append(piece)
            self.unread_bytes += len(piece)
        self.arrived.set()

    def take(self) -> bytes:
        taken = b"".join(self.pieces)
        self.pieces.clear()
        self.unread_bytes = 0
        self.arrived.clear()
        return taken


class EventFeed:
    def __init__(self, views: Views) -> None:
        self._views = views
        self._listeners: set[_Listener] = set()
        self._stop_listening: Callable[[], None] | None = None
        self.times_lagged = 0

    @property
    def max_unread_bytes(self) -> int:
        """The unread bytes of the slowest listener."""
        return max((listener.unread_bytes for listener in self._listeners), default=0)

    @property
    def listeners(self) -> int:
        return len(self._listeners)

    async def stream(self, after: int | None, beat_seconds: float) -> AsyncGenerator[bytes, None]:
        """From after the journal index `after`, or from now on."""
        listener = _Listener()
        self._add(listener)
        try:
            yield self._opening(after)
            while True:
                try:
                    async with asyncio.timeout(beat_seconds):
                        await listener.arrived.wait()
                except TimeoutError:
                    yield _BEAT
                    continue
                if listener.lagged:
                    listener.lagged = False
                    yield self._lagged()
                if taken := listener.take():
                    yield taken
        finally:
            self._remove(listener)

    def _opening(self, after: int | None) -> bytes:
        if after is None:
            return b"retry: 1000\nid: %d\n\n" % self._views.last_index
        missed = self._views.recent_after(after)
        if missed is None:
            return self._lagged()
        return b"retry: 1000\n\n" + b"".join(event_stream_text(group) for group in missed)

    def _lagged(self) -> bytes:
        self.times_lagged += 1
        index = self._views.last_index
        return b'event: lagged\ndata: {"index":%d,"type":"lagged"}\nid: %d\n\n' % (index, index)

    def _on_group(self, group: CommittedGroup) -> None:
        piece = event_stream_text(group)
        if piece:
            for listener in self._listeners:
                listener.offer(piece)

    def publish(self, piece: bytes) -> None:
        """For events outside the journal, like alerts: sent only to current listeners, and never again."""
        for listener in self._listeners:
            listener.offer(piece)

    def _add(self, listener: _Listener) -> None:
        self._listeners.add(listener)
        if self._stop_listening is None:
            self._stop_listening = self._views.listen(self._on_group)

    def _remove(self, listener: _Listener) -> None:
        self._listeners.discard(listener)
        if not self._listeners and self._stop_listening is not None:
            self._stop_listening()
            self._stop_listening = None
