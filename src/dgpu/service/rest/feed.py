"""Events for many listeners: each group is encoded once for each audience. A slow listener gets a notice of the gap."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator

from dgpu.service.access.audiences import Audiences
from dgpu.service.access.principal import Tenants
from dgpu.service.event_owners import OwnerUnknown
from dgpu.service.machine.outputs import CommittedGroup
from dgpu.service.views.events import ToldGroup
from dgpu.service.views.views import Views

MAX_UNREAD = 512  # pieces of one listener
MAX_UNREAD_BYTES = 1 << 20
TextFor = Callable[[Tenants], bytes]


class _Listener:
    __slots__ = ("arrived", "lagged", "pieces", "unread_bytes")

    def __init__(self) -> None:
        self.pieces: deque[bytes] = deque()
        self.unread_bytes = 0
        self.lagged = False
        self.arrived = asyncio.Event()

    def offer(self, piece: bytes) -> None:
        if len(self.pieces) >= MAX_UNREAD or self.unread_bytes + len(piece) > MAX_UNREAD_BYTES:
            self.lag()
        else:
            self.pieces.append(piece)
            self.unread_bytes += len(piece)
            self.arrived.set()

    def lag(self) -> None:
        """Its unread events are stale: it must read everything again."""
        self.pieces.clear()
        self.unread_bytes = 0
        self.lagged = True
        self.arrived.set()

    def take(self) -> bytes:
        taken = b"".join(self.pieces)
        self.pieces.clear()
        self.unread_bytes = 0
        self.arrived.clear()
        return taken


class _Audience:
    """The listeners of readers of the same tenants."""

    def __init__(self, tenants: Tenants) -> None:
        self.tenants = tenants
        self.listeners: set[_Listener] = set()


class EventFeed:
    def __init__(self, views: Views) -> None:
        self._views = views
        self._audiences = Audiences(_Audience, lambda audience: not audience.listeners)
        self._stop_listening: Callable[[], None] | None = None
        self.times_lagged = 0

    @property
    def max_unread_bytes(self) -> int:
        """The unread bytes of the slowest listener."""
        return max((listener.unread_bytes for listener in self._all()), default=0)

    @property
    def listeners(self) -> int:
        return sum(1 for _ in self._all())

    def stream(self, tenants: Tenants, after: int | None, beat_seconds: float) -> AsyncGenerator[bytes, None]:
        """From after the journal index `after`, or from now on. Raises TooManyAudiences."""
        self._audiences.of(tenants)  # refused before the answer begins
        return self._stream(tenants, after, beat_seconds)

    async def _stream(
        self, tenants: Tenants, after: int | None, beat_seconds: float
    ) -> AsyncGenerator[bytes, None]:
        audience, listener = self._audiences.of(tenants), _Listener()
        self._add(audience, listener)
        try:
            yield self._opening(tenants, after)
            while True:
                try:
                    async with asyncio.timeout(beat_seconds):
                        await listener.arrived.wait()
                except TimeoutError:
                    # Groups without an event for this reader: it need not get them again.
                    yield b": still here\nid: %d\n\n" % self._views.last_index
                    continue
                if listener.lagged:
                    listener.lagged = False
                    yield self._lagged()
                if taken := listener.take():
                    yield taken
        finally:
            self._remove(audience, listener)

    def _opening(self, tenants: Tenants, after: int | None) -> bytes:
        if after is None:
            return b"retry: 1000\nid: %d\n\n" % self._views.last_index
        missed = self._views.recent_after(after)
        if missed is None:
            return self._lagged()
        try:
            told = [ToldGroup(group, self._views.state).text(tenants) for group in missed]
        except OwnerUnknown:  # it may have missed events of its own tasks
            return self._lagged()
        return b"retry: 1000\n\n" + b"".join(told)

    def _lagged(self) -> bytes:
        self.times_lagged += 1
        index = self._views.last_index
        return b'event: lagged\ndata: {"index":%d,"type":"lagged"}\nid: %d\n\n' % (index, index)

    def _on_group(self, group: CommittedGroup) -> None:
        try:
            self.publish(ToldGroup(group, self._views.state).text)
        except OwnerUnknown:
            for listener in self._all():
                listener.lag()

    def publish(self, text_for: TextFor) -> None:
        """Also for events outside the journal, like alerts: sent only to current listeners, and never again."""
        for audience in self._audiences.all():
            if audience.listeners and (piece := text_for(audience.tenants)):
                for listener in audience.listeners:
                    listener.offer(piece)

    def _add(self, audience: _Audience, listener: _Listener) -> None:
        audience.listeners.add(listener)
        if self._stop_listening is None:
            self._stop_listening = self._views.listen(self._on_group)

    def _remove(self, audience: _Audience, listener: _Listener) -> None:
        audience.listeners.discard(listener)
        self._audiences.drop_idle()
        if not self.listeners and self._stop_listening is not None:
            self._stop_listening()
            self._stop_listening = None

    def _all(self) -> Iterator[_Listener]:
        return (listener for audience in self._audiences.all() for listener in audience.listeners)
