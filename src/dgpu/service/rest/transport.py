"""A transport that gathers writes, and closes without losing the answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

MAX_GATHERED_BYTES = 64 << 10
CLOSE_SECONDS = 10.0  # for the client to read the bytes written before the close


class OneWrite:
    """Gathers the writes of one turn of the loop: head and body of an answer are one system call."""

    def __init__(
        self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, lingers: Callable[[], bool]
    ) -> None:
        self._transport = transport
        self._loop = loop
        self._lingers = lingers  # True: the protocol ends the connection itself
        self._pieces: list[bytes] = []
        self._bytes = 0
        self._ended = False

    @property
    def underlying(self) -> asyncio.Transport:
        """All writes of this turn are sent before."""
        self.flush()
        return self._transport

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, piece: bytes) -> None:
        if self._ended:
            return
        self._pieces.append(piece)
        self._bytes += len(piece)
        if self._bytes > MAX_GATHERED_BYTES:
            self.flush()
        elif len(self._pieces) == 1:
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        if self._pieces:
            pieces, self._pieces, self._bytes = self._pieces, [], 0
            if not self._transport.is_closing():
                self._transport.write(b"".join(pieces))

    def write_eof(self) -> None:
        self.flush()
        self._ended = True
        # TLS has no end of one side alone; a last answer names its length.
        if not self._transport.is_closing() and self._transport.can_write_eof():
            self._transport.write_eof()

    def close(self) -> None:
        self.flush()
        if self._lingers():
            return
        self._transport.close()
        if self._transport.get_write_buffer_size():  # a peer that does not read must not keep it open
            self._loop.call_later(CLOSE_SECONDS, self._transport.abort)

    def abort(self) -> None:
        self._pieces.clear()
        self._transport.abort()

    def let_go(self) -> None:
        """The connection has ended: the protocol is no longer asked."""
        self._lingers = _never


def _never() -> bool:
    return False
