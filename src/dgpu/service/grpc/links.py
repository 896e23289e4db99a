"""Streams with a bounded queue of messages. A stream that does not drain is cut: a slow peer costs bounded memory."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import Any, Generic, TypeVar

import grpc
from google.protobuf.message import Message

M = TypeVar("M", bound=Message)

MAX_QUEUED = 1_000
MAX_QUEUED_BYTES = 32 << 20
_LAST_WORDS_S = 2.0


class Link(Generic[M]):
    """The scheduler's end of one stream: `send` and `hang_up` never wait; `run` writes until the stream ends."""

    def __init__(self, context: grpc.aio.ServicerContext[Any, M]) -> None:
        self._context = context
        self._queue: deque[M] = deque()
        self._queued_bytes = 0
        self._filled = asyncio.Event()
        self._closing = False
        self._cut: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._status = grpc.StatusCode.OK
        self._reason = ""

    @property
    def unsent(self) -> int:
        """Messages that the peer has not taken yet."""
        return len(self._queue)

    def send(self, message: M) -> None:
        if self._closing:
            return
        self._queue.append(message)
        self._queued_bytes += message.ByteSize()
        if len(self._queue) > MAX_QUEUED or self._queued_bytes > MAX_QUEUED_BYTES:
            self._queue.clear()
            self._end(grpc.StatusCode.RESOURCE_EXHAUSTED, "this agent does not read its messages")
            self.cut()
        self._filled.set()

    def hang_up(self, reason: str, *, fault: bool) -> None:
        """Ends the stream after all earlier messages."""
        self._end(grpc.StatusCode.INVALID_ARGUMENT if fault else grpc.StatusCode.UNAVAILABLE, reason)

    def refuse(self, reason: str) -> None:
        """Now: the caller may not go on, and nothing more is sent to it."""
        self._queue.clear()
        self._end(grpc.StatusCode.PERMISSION_DENIED, reason)
        self.cut()

    def cut(self) -> None:
        """Ends the stream now."""
        if not self._cut.done():
            self._cut.set_result(None)

    async def run(self) -> None:
        """Runs until the stream is hung up, cut, or cancelled. Ends the call with the matching status."""
        writing = asyncio.ensure_future(self._write())
        try:
            await asyncio.wait({writing, self._cut}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            writing.cancel()
        if self._status is not grpc.StatusCode.OK:
            await self._context.abort(self._status, self._reason)

    def _end(self, status: grpc.StatusCode, reason: str) -> None:
        if not self._closing:
            self._closing = True
            self._status, self._reason = status, reason
            self._filled.set()
            asyncio.get_running_loop().call_later(_LAST_WORDS_S, self.cut)

    async def _write(self) -> None:
        with contextlib.suppress(grpc.RpcError, asyncio.InvalidStateError):
            while True:
                while self._queue:
                    message = self._queue.popleft()
                    self._queued_bytes -= message.ByteSize()
                    await self._context.write(message)
                if self._closing:
                    return
                self._filled.clear()
                await self._filled.wait()
