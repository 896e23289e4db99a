"""uvicorn's HTTP protocol with bounds: slow headers, requests sent ahead, unread answers.

One request of a connection is parsed and answered at a time. Bytes of the next one stay unparsed, and reading pauses,
until the answer is written and most of it is sent.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import msgspec
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from dgpu.service.rest.doors import Doors, Guest
from dgpu.service.rest.transport import OneWrite
from dgpu.service.rest.turns import Turns, UnsentAnswer
from dgpu.wire.answers import Problem

HEADER_SECONDS = 10.0
KEEP_ALIVE_SECONDS = 75
UNREAD_SECONDS = 60.0  # then an answer is dropped if the client reads nothing
UNREAD_STREAM_SECONDS = 600.0  # a stream: `dgpu logs -f` in a pager may pause for a while
LINGER_SECONDS = 10.0
MAX_HEADER_BYTES = 64 << 10
MAX_AHEAD_BYTES = 1 << 20  # of requests sent ahead, unparsed
MAX_IGNORED_BYTES = 256 << 20  # of a refused body: read, so that the sender gets to read the answer
_PIECE_BYTES = 4 << 10  # parsed at a time while the end of a request is unknown
_HEADERS_END = b"\r\n\r\n"


def last_answer(status: bytes, code: str, detail: str) -> bytes:
    number, _, phrase = status.partition(b" ")
    problem = Problem(status=int(number), title=phrase.decode(), code=code, detail=detail)
    body = msgspec.json.encode(problem)
    return (
        b"HTTP/1.1 %b\r\nContent-Type: application/problem+json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b"
        % (status, len(body), body)
    )


_NOT_HTTP = last_answer(b"400 Bad Request", "malformed_http", "This is not a request of HTTP/1.1.")
_LONG_HEADERS = last_answer(
    b"431 Request Header Fields Too Large", "headers_too_large", "The headers may have at most 65,536 bytes."
)


class HttpProtocol(HttpToolsProtocol):
    """One per connection."""

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        *,
        guest: Guest,
        doors: Doors,
        turns: Turns,
    ) -> None:
        app_state = {**app_state, "switch": self.switch}
        super().__init__(config, server_state, app_state, asyncio.get_running_loop())
        self._guest = guest
        self._doors = doors
        self._turns = turns
        self._held = b""  # of requests sent ahead: not parsed yet
        self._answering = False
        self._in_message = False
        self._in_headers = False
        self._header_bytes = 0  # received since the last byte of a body: headers, or trailers
        self._body_left = 0  # -1: chunked, the end is unknown
        self._ignored_bytes = 0
        self._lingering = False
        self._header_limit: asyncio.TimerHandle | None = None
        self._linger_limit: asyncio.TimerHandle | None = None
        self._unread_limit: asyncio.TimerHandle | None = None
        self._unsent: UnsentAnswer | None = None

    # Connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._one_write = OneWrite(transport, self.loop, self._linger)
        super().connection_made(self._one_write)  # type: ignore[arg-type]
        self._guest.close = transport.abort
        if self._guest.is_leaving:  # its place was given away before it was used
            transport.abort()
            return
        self._await_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._headers_came()
        self._unset_keepalive_if_required()
        self._forget_unsent()
        if self._linger_limit is not None:
            self._linger_limit.cancel()
        self._held = b""
        self._guest.close = _nothing
        self._doors.leave(self._guest)
        super().connection_lost(exc)
        # Drops all references back to this object: the garbage collector runs rarely, and a flood opens hundreds a
        # second.
        self._one_write.let_go()
        self.app_state = {}
        self.cycle = None  # type: ignore[assignment]
        self.pipeline.clear()

    @property
    def is_unanswered(self) -> bool:
        """Whether a request is in progress, and nothing of its answer was sent."""
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.response_started

    def eof_received(self) -> None:
        if self._lingering:
            self.transport.abort()

    # Requests

    def data_received(self, data: bytes) -> None:
        if self._lingering:
            self._ignore(len(data))
        elif self._held:
            self._hold(data)
        else:
            self._feed(data)

    def _feed(self, data: bytes) -> None:
        start = 0
        while start < len(data):
            if self._must_wait():
                self._hold(data[start:])
                return
            end = self._piece_end(data, start)
            self._header_bytes += end - start
            super().data_received(data if end - start == len(data) else data[start:end])
            start = end
            if not self._in_message:
                self._header_bytes = 0
            elif self._header_bytes > MAX_HEADER_BYTES:
                self._end_with(_LONG_HEADERS)
            if self._lingering or self.transport.is_closing():
                return
        if self._in_headers:  # they did not come in one piece, as they almost always do
            self._await_headers()

    def _hold(self, data: bytes) -> None:
        self._held += data
        self.flow.pause_reading()  # the application may have resumed it, to notice the end of the connection
        if len(self._held) > MAX_AHEAD_BYTES:
            self.transport.abort()

    def _must_wait(self) -> bool:
        if self._in_message or self.cycle is None:
            return False
        return not self.cycle.response_complete or self.flow.write_paused

    def _piece_end(self, data: bytes, start: int) -> int:
        """Where to stop and check whether a request is complete: at the end of its headers, of its body, or soon."""
        if self._in_message and not self._in_headers and self._body_left >= 0:
            return min(len(data), start + max(1, self._body_left))
        found = -1 if self._in_message and not self._in_headers else data.find(_HEADERS_END, start)
        end = len(data) if found < 0 else found + len(_HEADERS_END)
        return min(end, start + _PIECE_BYTES)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._ignored_bytes = self._body_left = 0
        self._in_headers = self._in_message = True

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_headers:  # else a trailer: all checks of the headers are done
            super().on_header(name, value)
            self._note_length(name.lower(), value)

    def _note_length(self, name: bytes, value: bytes) -> None:
        if name == b"content-length" and value.strip().isdigit():
            self._body_left = int(value)
        elif name == b"transfer-encoding":
            self._body_left = -1

    def on_headers_complete(self) -> None:
        self._in_headers = False
        if self._lingering:
            return
        self._headers_came()
        self._doors.busy(self._guest)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if self._lingering:
            return
        self._header_bytes = 0
        if self._body_left > 0:
            self._body_left -= len(body)
        if self.cycle.response_complete:
            self._ignore(len(body))
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_message = False
        if self._lingering:
            return
        super().on_message_complete()
        if self.cycle.response_complete:  # answered before the body was complete
            self.loop.call_soon(self._go_on)

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - this server sends a problem instead
        self._end_with(_NOT_HTTP)

    def _unsupported_upgrade_warning(self) -> None:
        """The application decides: `switch`, or an answer as to any other request."""

    def switch(self, head: bytes, make: Callable[[Callable[..., None]], asyncio.BaseProtocol]) -> Any:
        """Answers with `head`, and gives the connection to another protocol. Returns the transport.

        `make` gets the function to call at the end of the connection.
        """
        self._unset_keepalive_if_required()
        self.cycle.response_started = self.cycle.response_complete = True
        self.flow.resume_reading()
        transport = self._one_write.underlying
        transport.write(head)
        transport.set_protocol(make(self.connection_lost))
        return transport

    # Answers

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        self._answering = False
        if self.transport.is_closing() or self._lingering:
            return
        if self._in_message and not self.pipeline:  # the rest of a refused body
            self._rest()
        else:
            self.loop.call_soon(self._go_on)  # not at once: other connections get their turn

    def _go_on(self) -> None:
        """Starts the next request, unless the client must still read this answer."""
        if self._answering or self._lingering or self.flow.write_paused or self.transport.is_closing():
            return
        if self.pipeline:  # parsed in one piece with the end of a chunked body
            self._start_asgi_task(*self.pipeline.pop())
            return
        if self._held:
            data, self._held = self._held, b""
            self._feed(data)
        if not self._answering and not self._held:
            self.flow.resume_reading()
            if not self._in_message:
                self._rest()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._answering = True
        super()._start_asgi_task(cycle, app)

    def _rest(self) -> None:
        self._doors.idle(self._guest, self.loop.time())
        self.flow.resume_reading()
        self._await_rest()

    def _await_rest(self) -> None:
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unsent = UnsentAnswer(self.transport.get_write_buffer_size, self._give_up_unread)
        self._turns.paused(self._unsent)
        self._watch_reader()

    def resume_writing(self) -> None:
        self._forget_unsent()
        super().resume_writing()
        if self.transport is not None and not self.transport.is_closing():
            self.loop.call_soon(self._go_on)

    def _watch_reader(self) -> None:
        if self._unsent is None:
            return
        is_stream = self.cycle is not None and bool(self.cycle.chunked_encoding)
        patience_s = UNREAD_STREAM_SECONDS if is_stream else UNREAD_SECONDS
        idle_s = self._unsent.idle_seconds(time.monotonic())
        if idle_s >= patience_s:
            self._give_up_unread()
        else:
            self._unread_limit = self.loop.call_later(
                max(0.05, min(patience_s - idle_s, patience_s / 2)), self._watch_reader
            )

    def _give_up_unread(self) -> None:
        self._doors.unread += 1
        self.transport.abort()

    def _forget_unsent(self) -> None:
        if self._unread_limit is not None:
            self._unread_limit.cancel()
            self._unread_limit = None
        if self._unsent is not None:
            unsent, self._unsent = self._unsent, None
            self._turns.resumed(unsent)

    # Ends

    def _end_with(self, answer: bytes) -> None:
        if not self._lingering and not self.transport.is_closing():
            self.transport.write(answer)
            self._linger_now()

    def _linger(self) -> bool:
        """Called by the transport before it closes: bytes still on the way would make the kernel drop the answer."""
        if (self._in_message or self._held) and not self._lingering:
            self._linger_now()
        return self._lingering

    def _linger_now(self) -> None:
        """Sends the answer, then ends this side. Bytes that the client still sends are read and dropped for a while."""
        self._lingering = True
        self._held = b""
        self._headers_came()
        self._unset_keepalive_if_required()
        self.transport.write_eof()
        self.flow.resume_reading()
        self._linger_limit = self.loop.call_later(LINGER_SECONDS, self.transport.abort)

    def _ignore(self, number: int) -> None:
        self._ignored_bytes += number
        if self._ignored_bytes > MAX_IGNORED_BYTES:
            self.transport.abort()

    def _await_headers(self) -> None:
        """An open connection that sends no complete headers must not stay."""
        if self._header_limit is None:
            self._header_limit = self.loop.call_later(HEADER_SECONDS, self._give_up)

    def _headers_came(self) -> None:
        if self._header_limit is not None:
            self._header_limit.cancel()
            self._header_limit = None

    def _give_up(self) -> None:
        self._header_limit = None
        self.transport.abort()


def _nothing() -> None:
    pass
