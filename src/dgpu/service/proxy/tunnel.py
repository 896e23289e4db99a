"""A connection of a client after a switch of protocols: bytes in both directions, bounded."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from dgpu.service.task_channels import Channel, Piece

MAX_UNREAD_BYTES: Final = 256 << 10  # then the connection is not read
CLOSE_SECONDS: Final = 10.0  # for the client to read the bytes written before the close


class RawEnd(asyncio.Protocol):
    """`receive` and `send` wait; each is used by one task at a time."""

    def __init__(self, on_end: Callable[..., None]) -> None:
        self.transport: asyncio.Transport | None = None  # set by the caller, with the switch of the protocol
        self._on_end = on_end
        self._pieces: deque[bytes] = deque()
        self._unread_bytes = 0
        self._is_over = False
        self._arrived = asyncio.Event()
        self._may_write = asyncio.Event()
        self._may_write.set()

    async def receive(self) -> bytes:
        """Empty: the client has ended its side."""
        while not self._pieces:
            if self._is_over:
                return b""
            self._arrived.clear()
            await self._arrived.wait()
        piece = self._pieces.popleft()
        self._unread_bytes -= len(piece)
        if self.transport is not None and self._unread_bytes < MAX_UNREAD_BYTES and not self._is_over:
            self.transport.resume_reading()
        return piece

    async def send(self, data: bytes) -> None:
        await self._may_write.wait()
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(data)

    def close(self) -> None:
        if self.transport is not None:
            self.transport.close()
            asyncio.get_running_loop().call_later(CLOSE_SECONDS, self.transport.abort)

    # asyncio's side

    def data_received(self, data: bytes) -> None:
        self._pieces.append(data)
        self._unread_bytes += len(data)
        if self._unread_bytes >= MAX_UNREAD_BYTES and self.transport is not None:
            self.transport.pause_reading()
        self._arrived.set()

    def eof_received(self) -> None:
        self._is_over = True
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


async def tunnel(end: RawEnd, channel: Channel, first: bytes) -> None:
    """Until one side has ended."""
    work = [
        asyncio.ensure_future(_upward(end, channel)),
        asyncio.ensure_future(_downward(end, channel, first)),
    ]
    try:
        await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for part in work:
            part.cancel()
        channel.close()
        end.close()


async def _upward(end: RawEnd, channel: Channel) -> None:
    while piece := await end.receive():
        await channel.send(piece)


async def _downward(end: RawEnd, channel: Channel, first: bytes) -> None:
    if first:
        await end.send(first)
    while isinstance(piece := await channel.receive(), Piece):
        await end.send(piece.data)
