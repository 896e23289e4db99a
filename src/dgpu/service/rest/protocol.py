"""uvicorn's HTTP protocol with what it lacks: who the peer is, a limit on slow headers, and one on connections."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import msgspec
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from dgpu.service.rest.access import Peer
from dgpu.service.rest.peer import peer_uid
from dgpu.wire.answers import Problem

MOST_CONNECTIONS = 4_096
HEADER_SECONDS = 10.0
KEEP_ALIVE_SECONDS = 75
MOST_HEADER_BYTES = 64 << 10
MOST_GATHERED_BYTES = 64 << 10
MOST_IGNORED_BYTES = (
    256 << 20
)  # of a body that was refused: read on, so that the sender gets to read the answer


def _last_words(status: bytes, code: str, detail: str) -> bytes:
    number, _, phrase = status.partition(b" ")
    problem = Problem(status=int(number), title=phrase.decode(), code=code, detail=detail)
    body = msgspec.json.encode(problem)
    return (
        b"HTTP/1.1 %b\r\nContent-Type: application/problem+json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b"
        % (status, len(body), body)
    )


_TOO_MANY = _last_words(
    b"503 Service Unavailable", "too_many_connections", "Too many connections are open. Try again soon."
)
_NOT_HTTP = _last_words(b"400 Bad Request", "malformed_http", "This is not a request of HTTP/1.1.")
_LONG_HEADERS = _last_words(
    b"431 Request Header Fields Too Large", "headers_too_large", "The headers may have at most 65,536 bytes."
)


class OneWrite:
    """A transport that gathers what is written in one turn of the loop: an answer's head and body are one system call."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._pieces: list[bytes] = []
        self._bytes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._bytes += len(piece)
        if self._bytes > MOST_GATHERED_BYTES:
            self.flush()
        elif len(self._pieces) == 1:
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        if self._pieces:
            pieces, self._pieces, self._bytes = self._pieces, [], 0
            if not self._transport.is_closing():
                self._transport.write(b"".join(pieces))

    def close(self) -> None:
        self.flush()
        self._transport.close()

    def abort(self) -> None:
        self._pieces.clear()
        self._transport.abort()


class HttpProtocol(HttpToolsProtocol):
    """One per connection."""

    _header_limit: asyncio.TimerHandle | None = None
    _in_headers = False
    _header_bytes = 0
    _ignored_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(OneWrite(transport, self.loop))  # type: ignore[arg-type]
        if len(self.connections) > MOST_CONNECTIONS:
            self._end_with(_TOO_MANY)
            return
        # asyncio does this by itself only for sockets that were made with the protocol's number; without it, an
        # answer of two writes waits for the other side's delayed acknowledgement, 40 ms
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.app_state = {**self.app_state, "peer": Peer(uid=self._peer_uid())}
        self._await_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._headers_came()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._in_headers:  # they did not come in one piece, as they nearly always do
            self._await_headers()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._header_bytes = self._ignored_bytes = 0
        self._in_headers = True

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._count_header(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_headers:  # else a trailer: every check of the headers is over
            super().on_header(name, value)
        self._count_header(len(name) + len(value))

    def on_body(self, body: bytes) -> None:
        if self.cycle.response_complete:
            self._ignored_bytes += len(body)
            if self._ignored_bytes > MOST_IGNORED_BYTES:
                self.transport.close()
        super().on_body(body)

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - ours says it as a problem
        self._end_with(_NOT_HTTP)

    def on_headers_complete(self) -> None:
        self._in_headers = False
        self._headers_came()
        super().on_headers_complete()

    def _peer_uid(self) -> int | None:
        if self.client is None or self.server is None or self.server[1] is None:
            return None
        if not _is_loopback(self.client[0]):
            return None
        return peer_uid((self.server[0], self.server[1]), self.client)

    def _count_header(self, number: int) -> None:
        self._header_bytes += number
        if self._header_bytes > MOST_HEADER_BYTES:
            self._end_with(_LONG_HEADERS)

    def _end_with(self, words: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(words)
            self.transport.close()

    def _await_headers(self) -> None:
        """A connection that is open and does not come to the point must not stay."""
        if self._header_limit is None:
            self._header_limit = self.loop.call_later(HEADER_SECONDS, self._give_up)

    def _headers_came(self) -> None:
        if self._header_limit is not None:
            self._header_limit.cancel()
            self._header_limit = None

    def _give_up(self) -> None:
        self._header_limit = None
        if not self.transport.is_closing():
            self.transport.close()


def _is_loopback(host: str) -> bool:
    return host.startswith("127.") or host == "::1"


class HttpServer:
    """Serves an ASGI application on a socket that is bound already. Signals and the loop are the caller's."""

    def __init__(self, app: Any) -> None:
        self._config = uvicorn.Config(
            app,
            http=HttpProtocol,
            ws="none",
            loop="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
        )
        self._config.load()
        self._state = ServerState()
        self._server: asyncio.Server | None = None

    async def start(self, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: HttpProtocol(config=self._config, server_state=self._state, app_state={}, _loop=loop),
            sock=sock,
            backlog=1_024,
        )

    async def stop(self, grace_seconds: float = 2.0) -> None:
        """Nothing new is taken; what is under way gets a moment, endless streams are cut."""
        if self._server is None:
            return
        self._server.close()
        for connection in tuple(self._state.connections):
            connection.shutdown()
        if self._state.tasks:
            await asyncio.wait(tuple(self._state.tasks), timeout=grace_seconds)
        for task in tuple(self._state.tasks):
            task.cancel()
        if self._state.tasks:
            await asyncio.wait(tuple(self._state.tasks), timeout=grace_seconds)
        for connection in tuple(self._state.connections):
            connection.transport.abort()
