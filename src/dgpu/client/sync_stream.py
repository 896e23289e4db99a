"""Responses of the blocking client that are read while they arrive, each on its own connection."""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable, Generator, Mapping
from types import TracebackType
from typing import Self, TypeVar
from urllib.parse import urlsplit

from dgpu.client.attempts import Answer, Turn, answer_of
from dgpu.client.errors import Unreachable, why_unreachable
from dgpu.client.stream import KEEPALIVE, MAX_LINE_BYTES, Breaks, EventParser, ServerEvent

T = TypeVar("T")

BROKEN = (OSError, http.client.HTTPException)
_NO_HTTP = (http.client.BadStatusLine, http.client.LineTooLong, http.client.UnknownProtocol)


def is_http(error: BaseException) -> bool:
    silent = isinstance(error, http.client.RemoteDisconnected)  # a subclass of BadStatusLine, too
    return silent or not isinstance(error, _NO_HTTP)


def connect(turn: Turn) -> http.client.HTTPConnection:
    parts = urlsplit(turn.server.url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=turn.connect_seconds)
    connection.connect()
    return connection


class Stream:
    def __init__(
        self,
        url: str,
        connection: http.client.HTTPConnection,
        response: http.client.HTTPResponse,
        answer: Answer,
    ) -> None:
        self._url = url
        self._connection = connection
        self.response = response
        self.answer = answer

    @classmethod
    def open(cls, turn: Turn, path: str, headers: Mapping[str, str], silence_seconds: float | None) -> Self:
        """A stream that is silent for longer has broken; None: silence is normal."""
        connection = connect(turn)
        try:
            sock = connection.sock  # a response without a length takes it away from the connection
            sock.settimeout(turn.timeout_seconds)
            for option in KEEPALIVE:
                sock.setsockopt(*option)
            connection.request("GET", path, headers=dict(headers))
            response = connection.getresponse()
            refusal = response.read() if response.status != 200 else b""
            sock.settimeout(silence_seconds)
        except BaseException:
            connection.close()
            raise
        if response.status != 200:
            connection.close()
        answer = answer_of(response.status, refusal, response.getheader)
        return cls(turn.server.url, connection, response, answer)

    def __enter__(self) -> http.client.HTTPResponse:
        return self.response

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()
        if isinstance(error, BROKEN):
            why = why_unreachable(error, is_http=is_http(error))
            raise Unreachable(f"The stream of {self._url} broke ({why}).") from error


def read_pieces(stream: Stream) -> Generator[bytes, None, None]:
    with stream as response:
        while piece := response.read1(65_536):
            yield piece


def read_events(stream: Stream, parser: EventParser) -> Generator[ServerEvent, None, None]:
    with stream as response:
        while line := response.readline(MAX_LINE_BYTES):
            event = parser.on_line(line.decode("utf-8", "replace").rstrip("\r\n"))
            if event is not None:
                yield event


def resumed(
    open_stream: Callable[[], Stream],
    read: Callable[[Stream], Generator[T, None, None]],
    retries: int,
    *,
    is_endless: bool,
) -> Generator[T, None, None]:
    """Opens the first stream now, and another one after each break. An endless stream breaks also where it ends."""
    return _resumed(open_stream, open_stream(), read, Breaks(retries), is_endless=is_endless)


def _resumed(
    open_stream: Callable[[], Stream],
    stream: Stream,
    read: Callable[[Stream], Generator[T, None, None]],
    breaks: Breaks,
    *,
    is_endless: bool,
) -> Generator[T, None, None]:
    while True:
        breaks.on_open(time.monotonic())
        try:
            for item in read(stream):
                breaks.on_item()
                yield item
        except Unreachable:
            pause = breaks.pause(time.monotonic())
            if pause is None:
                raise
        else:
            pause = breaks.pause(time.monotonic()) if is_endless else None
            if pause is None:
                return
        time.sleep(pause)
        stream = open_stream()
