"""A WebSocket on a connection that was an HTTP request before. Bounded in both directions."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from dgpu.wire.websocket import BadWebSocket, Decoder, Kind, Message, encode

MAX_UNREAD_BYTES = 256 << 10  # then the connection is not read
CLOSE_SECONDS = 10.0  # for the client to read the bytes written before the close


class WebSocketEnd(asyncio.Protocol):
    """The server's end. `receive` and `send` wait; each is used by one task at a time."""

    def __init__(self, on_end: Callable[..., None], *, max_message_bytes: int) -> None:
        self.transport: asyncio.Transport | None = None  # set by the caller, with the switch of the protocol
        self._on_end = on_end
        self._decoder = Decoder(expects_masks=True, max_bytes=max_message_bytes)
        self._messages: deque[Message] = deque()
        self._unread_bytes = 0
        self._is_over = False
        self._arrived = asyncio.Event()
        self._may_write = asyncio.Event()
        self._may_write.set()

    async def receive(self) -> Message | None:
        """The next message with content, or a pong. None: the client has left."""
        while not self._messages:
            if self._is_over:
                return None
            self._arrived.clear()
            await self._arrived.wait()
        message = self._messages.popleft()
        self._unread_bytes -= len(message.body) + 1
        if self.transport is not None and self._unread_bytes < MAX_UNREAD_BYTES and not self._is_over:
            self.transport.resume_reading()
        return message

    async def send(self, kind: Kind, body: bytes) -> None:
        """Waits until the client has taken most of what was sent before."""
        await self._may_write.wait()
        self._write(kind, body)

    def close(self) -> None:
        """After all that was sent."""
        self._write(Kind.CLOSE, b"\x03\xe8")  # a normal end
        self._is_over = True
        if self.transport is not None:
            self.transport.close()
            asyncio.get_running_loop().call_later(CLOSE_SECONDS, self.transport.abort)

    # asyncio's side

    def data_received(self, data: bytes) -> None:
        try:
            messages = self._decoder.feed(data)
        except BadWebSocket:
            messages = []
            self._is_over = True
        for message in messages:
            if message.kind is Kind.PING:
                if self._may_write.is_set():  # else the client does not read: pongs would fill the memory
                    self._write(Kind.PONG, message.body)
            elif message.kind is Kind.CLOSE:
                self._is_over = True
            else:
                self._messages.append(message)
                self._unread_bytes += len(message.body) + 1
        if self._unread_bytes >= MAX_UNREAD_BYTES and self.transport is not None:
            self.transport.pause_reading()
        self._arrived.set()

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_over = True
        self._arrived.set()
        self._may_write.set()
        self._on_end(exc)

    def _write(self, kind: Kind, body: bytes) -> None:
        if self.transport is not None and not self._is_over and not self.transport.is_closing():
            self.transport.write(encode(kind, body, masked=False))
