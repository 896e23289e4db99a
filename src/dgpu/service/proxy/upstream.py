"""HTTP/1.1 to a program of a task, over a channel. Bodies stream in both directions."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, NamedTuple

import httptools

from dgpu.service.task_channels import Channel, Closed

MAX_HEAD_BYTES: Final = 64 << 10
HEAD_SECONDS: Final = 600.0  # for the first byte of an answer: a model may think for long
IDLE_SECONDS: Final = 3_600.0  # between two pieces of an answer


class UpstreamFailed(Exception):  # noqa: N818 - the name states the failure
    """`code`: bad_answer, no_answer, cut_off. `is_untouched`: the program may not have seen the request."""

    def __init__(self, code: str, detail: str, *, is_untouched: bool = False) -> None:
        super().__init__(detail)
        self.code = code
        self.is_untouched = is_untouched


class Head(NamedTuple):
    status: int
    headers: list[tuple[bytes, bytes]]
    rest: bytes = b""  # after a switch of protocols: its first bytes


class Upstream:
    """One connection, for one request at a time."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.is_reused = False
        self.uses = 0
        self._is_done = True  # the last answer has ended
        self._is_sent = True  # the last request is complete
        self._keeps_alive = False
        self._begin()

    @property
    def may_be_reused(self) -> bool:
        """The program would read a next request as the rest of one that was not sent in full."""
        return self._is_sent and self._is_done and self._keeps_alive and self.channel.is_quiet

    def _begin(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._headers: list[tuple[bytes, bytes]] = []
        self._has_head = False
        self._pieces: deque[bytes] = deque()
        self._received = 0
        self._status = 0

    # The request

    async def send_head(self, head: bytes) -> None:
        self._begin()
        self.uses += 1
        self._is_sent = self._is_done = self._keeps_alive = False
        await self.channel.send(head)

    async def send_body(self, piece: bytes, *, chunked: bool) -> None:
        if chunked and piece:
            piece = b"%x\r\n%b\r\n" % (len(piece), piece)
        await self.channel.send(piece)

    async def end_request(self, *, chunked: bool) -> None:
        if chunked:
            await self.channel.send(b"0\r\n\r\n")
        self._is_sent = True

    # The answer

    async def head(self, *, is_head_request: bool = False) -> Head:
        """Raises UpstreamFailed."""
        rest = b""
        while not self._has_head:
            piece = await self._receive(HEAD_SECONDS)
            if isinstance(piece, Closed):
                detail = "the program ended the connection before its answer"
                raise UpstreamFailed("no_answer", detail, is_untouched=not self._received)
            self._received += len(piece)
            rest = self._feed(piece)
            if self._received > MAX_HEAD_BYTES and not self._has_head:
                raise UpstreamFailed("bad_answer", f"its headers have more than {MAX_HEAD_BYTES:,} bytes")
        if is_head_request:
            self._is_done, self._keeps_alive = True, False  # whether a body follows is unknown
            self._pieces.clear()
        return Head(self._status, self._headers, rest)

    async def piece(self) -> bytes:
        """The next piece of the body; empty: it has ended. Raises UpstreamFailed."""
        while not self._pieces:
            if self._is_done:
                return b""
            piece = await self._receive(IDLE_SECONDS)
            if isinstance(piece, Closed):
                if piece.reason == "ended" and self._ends_with_connection():
                    self._is_done = True
                    return b""
                raise UpstreamFailed("cut_off", piece.detail or "the connection ended within the answer")
            self._feed(piece)
        return self._pieces.popleft()

    async def _receive(self, seconds: float) -> bytes | Closed:
        try:
            async with asyncio.timeout(seconds):
                got = await self.channel.receive()
        except TimeoutError:
            raise UpstreamFailed("no_answer", f"the program sent nothing for {seconds:.0f} s") from None
        return got if isinstance(got, Closed) else got.data

    def _feed(self, data: bytes) -> bytes:
        """Bytes of another protocol, after a switch to it."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as switch:
            self._has_head = True
            return data[switch.args[0] :]
        except httptools.HttpParserError as error:
            raise UpstreamFailed("bad_answer", f"its answer is not HTTP/1.1 ({error})") from None
        return b""

    def _ends_with_connection(self) -> bool:
        names = {name.lower() for name, _ in self._headers}
        return not names & {b"content-length", b"transfer-encoding"}

    # For the parser

    def on_message_begin(self) -> None:
        if self._has_head:  # more than one answer to one request
            self._keeps_alive = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._has_head:  # else a trailer
            self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        if self._has_head:
            return
        status = self._parser.get_status_code()
        if status >= 200 or status == 101:
            self._has_head, self._status = True, status
            self._keeps_alive = self._parser.should_keep_alive()
        else:
            self._headers = []  # 100 or 103: the answer follows

    def on_body(self, body: bytes) -> None:
        if not self._is_done:  # else of a further answer, which belongs to no request
            self._pieces.append(body)

    def on_message_complete(self) -> None:
        if self._has_head:
            self._is_done = True
