"""Streams: server-sent events, and the place where a broken stream continues. No I/O, so both clients share it."""

from __future__ import annotations

import socket
from collections.abc import Generator, Iterable
from typing import Any, NamedTuple

import msgspec

from dgpu.client import repeats

MAX_LINE_BYTES = 16 << 20
SILENCE_SECONDS = 45.0  # event streams send a line every 15 s: a longer silence is a dead connection
LONG_SECONDS = 5.0  # a stream that lived this long counts as a success, although it brought nothing
_WHOLE = 1 << 62  # all events of a group
# The kernel notices a machine that vanished after 25 s; followed output may be silent for hours.
KEEPALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *(
        (socket.IPPROTO_TCP, getattr(socket, name), value)
        for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
        if hasattr(socket, name)  # not on every system
    ),
)


class ServerEvent(msgspec.Struct, frozen=True, kw_only=True):
    id: str  # the journal index; pass it as `after` to continue after it
    type: str
    facts: dict[str, Any]


class EventParser:
    """One for all streams of a call: events that a later stream repeats are left out."""

    def __init__(self, after: str | None = None) -> None:
        self.last_id = after or ""
        self._type = ""
        self._lines: list[str] = []
        self._got = _Place()
        self._known = _Place()  # before the current stream

    def begin(self) -> dict[str, str]:
        """Before each stream: the header that names the place to continue."""
        self._type, self._lines = "", []
        is_number = self.last_id.isascii() and self.last_id.isdigit()
        named = _Place(int(self.last_id), _WHOLE) if is_number else _Place()
        self._known, self._got = max(self._known, self._got, named), _Place()
        return {"Last-Event-ID": self.last_id} if self.last_id else {}

    def on_line(self, line: str) -> ServerEvent | None:
        """Takes one line without its end. An event is complete at the empty line after it."""
        if not line:
            return self._complete()
        if line.startswith(":"):
            return None
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "id":
            self.last_id = value
        elif name == "event":
            self._type = value
        elif name == "data":
            self._lines.append(value)
        return None

    def _complete(self) -> ServerEvent | None:
        kind, text = self._type, "\n".join(self._lines)
        self._type, self._lines = "", []
        if not text:
            return None
        try:
            facts = msgspec.json.decode(text)
        except msgspec.MsgspecError:
            return None
        if not isinstance(facts, dict) or self._is_known(kind, facts.get("index")):
            return None
        return ServerEvent(id=self.last_id, type=kind or "message", facts=facts)

    def _is_known(self, kind: str, index: object) -> bool:
        """A stream that breaks within a group repeats the group; one of a standby that is behind repeats more."""
        if kind == "lagged" or not isinstance(index, int):
            return False  # events outside the journal, like alerts, have no place in it
        self._got = _Place(index, self._got.events + 1 if index == self._got.group else 1)
        return self._got <= self._known


class _Place(NamedTuple):
    """So many events of a group."""

    group: int = -1
    events: int = 0


class OutputPlace:
    """The end of the output that a follower got. The next stream starts from the beginning and is skipped up to it."""

    def __init__(self, tail: int | None) -> None:
        self._tail = tail
        self._got = 0
        self._skip = 0

    def begin(self) -> int | None:
        """Before each stream: the number of last lines to ask for."""
        if self._tail is not None and self._got:
            self._tail, self._got = 0, 0  # output in between is lost rather than shown twice
        self._skip = self._got
        return self._tail

    def fresh(self, pieces: Iterable[bytes]) -> Generator[bytes, None, None]:
        for piece in pieces:
            if new := self.on_piece(piece):
                yield new

    def on_piece(self, piece: bytes) -> bytes:
        fresh = piece[self._skip :]
        self._skip = max(0, self._skip - len(piece))
        self._got += len(fresh)
        return fresh


class Breaks:
    """The pauses between the streams of one call. They grow until a stream brings something or lives for a while.

    Without retries, a call ends with its stream.
    """

    def __init__(self, retries: int) -> None:
        self._retries = retries
        self._pauses = repeats.pauses(retries)
        self._opened_s = 0.0

    def on_open(self, now: float) -> None:
        self._opened_s = now

    def on_item(self) -> None:
        self._pauses = repeats.pauses(self._retries)

    def pause(self, now: float) -> float | None:
        """None: give up."""
        if now - self._opened_s >= LONG_SECONDS:
            self.on_item()
        return next(self._pauses, None)
