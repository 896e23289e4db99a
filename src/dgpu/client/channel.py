"""A channel to a running task: its terminal, or a command in its environment. A WebSocket on asyncio streams."""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

import msgspec

from dgpu.client.errors import Unreachable
from dgpu.client.renewal import token_of
from dgpu.client.request import bearer, failure
from dgpu.client.server import Server
from dgpu.wire.channel_answers import (
    ERRORS,
    MAX_MESSAGE_BYTES,
    SILENT_SECONDS,
    STANDARD,
    SUBPROTOCOL,
    FromClient,
    OpenedChannel,
    ToClient,
)
from dgpu.wire.websocket import BadWebSocket, Decoder, Kind, Message, accept_of, encode, new_key

if TYPE_CHECKING:
    from dgpu.client.sync import Client

_CONNECT_SECONDS = 10.0
_MAX_HEAD_BYTES = 64 << 10
_READ_BYTES = 64 << 10
_PIECE_BYTES = 32 << 10


async def connect(client: Client, opened: OpenedChannel) -> Channel:
    """To a channel that `client.open_channel` has just opened, at the scheduler that opened it."""
    server = client._schedulers.current  # noqa: SLF001 - a part of the client
    return await Channel.connect(server._replace(token=token_of(server)), opened)


class Output(NamedTuple):
    data: bytes
    is_error_output: bool


class Channel:
    """`receive` is used by one task at a time. Raises Unreachable when the connection is lost."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._decoder = Decoder(expects_masks=False, max_bytes=MAX_MESSAGE_BYTES)
        self._messages: list[Message] = []

    @classmethod
    async def connect(cls, server: Server, opened: OpenedChannel) -> Channel:
        """To the scheduler that opened the channel."""
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                return await cls._connect(server, opened)
        except (OSError, EOFError, asyncio.LimitOverrunError) as error:
            raise Unreachable(f"{server.url} ended the connection of the channel ({error}).") from error

    @classmethod
    async def _connect(cls, server: Server, opened: OpenedChannel) -> Channel:
        parts = urlsplit(server.url)
        is_tls = parts.scheme == "https"
        port = parts.port or (443 if is_tls else 80)
        context = ssl.create_default_context() if is_tls else None
        reader, writer = await asyncio.open_connection(
            parts.hostname or "", port, ssl=context, limit=_MAX_HEAD_BYTES
        )
        key = new_key()
        headers = {
            "Host": parts.netloc,
            "Upgrade": "websocket",
            "Connection": "Upgrade",
            "Sec-WebSocket-Key": key,
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Protocol": SUBPROTOCOL,
            **bearer(server.token),
        }
        lines = [
            f"GET {parts.path}{opened.path} HTTP/1.1",
            *(f"{name}: {value}" for name, value in headers.items()),
        ]
        try:
            writer.write("\r\n".join([*lines, "", ""]).encode())
            head = await reader.readuntil(b"\r\n\r\n")
            await _check_switched(head, key, reader)
        except BaseException:
            writer.close()
            raise
        return cls(reader, writer)

    async def receive(self) -> Output | ToClient:
        """The next piece of output; after the last one, why the channel has ended."""
        while True:
            message = await self._next()
            if message.kind is Kind.BINARY:
                return Output(message.body[1:], message.body[:1] == ERRORS)
            if message.kind is Kind.TEXT:
                return msgspec.json.decode(message.body, type=ToClient)
            if message.kind is Kind.PING:
                self._write(Kind.PONG, message.body)
            elif message.kind is Kind.CLOSE:
                raise Unreachable("The scheduler ended the connection of the channel.")

    async def send(self, data: bytes) -> None:
        """Input. Waits while the program does not take it."""
        try:
            for start in range(0, len(data), _PIECE_BYTES):
                self._write(Kind.BINARY, STANDARD + data[start : start + _PIECE_BYTES])
                await self._writer.drain()
        except OSError as error:
            raise Unreachable(f"The connection of the channel was lost ({error}).") from error

    def resize(self, rows: int, columns: int) -> None:
        self._write(Kind.TEXT, msgspec.json.encode(FromClient(size=(rows, columns))))

    def end_input(self) -> None:
        self._write(Kind.TEXT, msgspec.json.encode(FromClient(end=True)))

    def close(self) -> None:
        """A command ends with its channel; a task and its terminal continue."""
        self._write(Kind.CLOSE, b"\x03\xe8")
        self._writer.close()

    async def _next(self) -> Message:
        while not self._messages:
            try:
                async with asyncio.timeout(SILENT_SECONDS):
                    received = await self._reader.read(_READ_BYTES)
                self._messages = self._decoder.feed(received)
            except (OSError, BadWebSocket) as error:
                raise Unreachable(f"The connection of the channel was lost ({error}).") from error
            if not received:
                raise Unreachable("The connection of the channel was lost.")
        return self._messages.pop(0)

    def _write(self, kind: Kind, body: bytes) -> None:
        if not self._writer.is_closing():
            self._writer.write(encode(kind, body, masked=True))


async def _check_switched(head: bytes, key: str, reader: asyncio.StreamReader) -> None:
    status_line, *lines = head.decode("latin-1").split("\r\n")
    words = status_line.split(" ", 2)
    headers = {
        name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
    }
    status = int(words[1]) if len(words) > 1 and words[1].isdigit() else 0
    if status == 101 and headers.get("sec-websocket-accept") == accept_of(key.encode()).decode():
        return
    length = headers.get("content-length", "")
    body = await reader.readexactly(min(int(length), _MAX_HEAD_BYTES)) if length.isdigit() else b""
    if status >= 400:
        raise failure(status, body)
    raise Unreachable(
        f"The server answered {status} instead of opening a WebSocket. A proxy before the scheduler must pass on the "
        "headers Upgrade and Connection."
    )
