"""WebSocket (RFC 6455) without I/O: bytes in, messages out, and back. Both ends use it; there are no extensions."""

from __future__ import annotations

import base64
import enum
import hashlib
import os
import struct
from typing import NamedTuple

_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_FINAL = 0x80
_MASKED = 0x80
_CONTROL = 0x8


class Kind(enum.IntEnum):
    CONTINUATION = 0
    TEXT = 1
    BINARY = 2
    CLOSE = 8
    PING = 9
    PONG = 10


class Message(NamedTuple):
    kind: Kind
    body: bytes


class BadWebSocket(Exception):  # noqa: N818 - a fact about the peer
    """The bytes are not WebSocket, or a message is too long."""


def new_key() -> str:
    return base64.b64encode(os.urandom(16)).decode()


def accept_of(key: bytes) -> bytes:
    """The proof of the server that it has read the key of the client."""
    return base64.b64encode(hashlib.sha1(key + _GUID, usedforsecurity=False).digest())


def encode(kind: Kind, body: bytes, *, masked: bool) -> bytes:
    """A whole message as one frame. A client masks its frames, a server does not."""
    length, mark = len(body), _MASKED if masked else 0
    if length < 126:
        head = struct.pack(">BB", _FINAL | kind, mark | length)
    elif length < 1 << 16:
        head = struct.pack(">BBH", _FINAL | kind, mark | 126, length)
    else:
        head = struct.pack(">BBQ", _FINAL | kind, mark | 127, length)
    if not masked:
        return head + body
    mask = os.urandom(4)
    return head + mask + _with_mask(body, mask)


class Decoder:
    """Messages of the other end. `expects_masks`: the other end is a client."""

    def __init__(self, *, expects_masks: bool, max_bytes: int) -> None:
        self._expects_masks = expects_masks
        self._max_bytes = max_bytes
        self._buffer = bytearray()
        self._kind: Kind | None = None  # of a message in several frames
        self._parts = bytearray()

    def feed(self, received: bytes) -> list[Message]:
        """Raises BadWebSocket."""
        self._buffer += received
        messages: list[Message] = []
        while (frame := self._next_frame()) is not None:
            if (message := self._add(*frame)) is not None:
                messages.append(message)
        return messages

    def _next_frame(self) -> tuple[int, bytes] | None:
        """The first byte and the body."""
        buffer = self._buffer
        if len(buffer) < 2:
            return None
        length, start = buffer[1] & 0x7F, 2
        if length >= 126:
            shape = ">H" if length == 126 else ">Q"
            start += struct.calcsize(shape)
            if len(buffer) < start:
                return None
            (length,) = struct.unpack_from(shape, buffer, 2)
        if length + len(self._parts) > self._max_bytes:
            raise BadWebSocket(f"a message of more than {self._max_bytes} bytes")
        if bool(buffer[1] & _MASKED) is not self._expects_masks:
            raise BadWebSocket("a frame with the wrong mask")
        mask_at, start = start, start + (4 if self._expects_masks else 0)
        if len(buffer) < start + length:
            return None
        mask = bytes(buffer[mask_at:start])
        body = bytes(buffer[start : start + length])
        first = buffer[0]
        del buffer[: start + length]
        return first, _with_mask(body, mask) if mask else body

    def _add(self, first: int, body: bytes) -> Message | None:
        is_final = bool(first & _FINAL)
        try:
            kind = Kind(first & 0x7F)
        except ValueError:
            raise BadWebSocket(f"a frame of the unknown kind {first & 0x7F}") from None
        if kind & _CONTROL:
            if not is_final or len(body) > 125:
                raise BadWebSocket("a control frame that is long or in parts")
            return Message(kind, body)
        if (kind is Kind.CONTINUATION) is (self._kind is None):
            raise BadWebSocket("a frame out of order")
        self._kind = self._kind or kind
        self._parts += body
        if not is_final:
            return None
        message = Message(self._kind, bytes(self._parts))
        self._kind = None
        self._parts.clear()
        return message


def _with_mask(body: bytes, mask: bytes) -> bytes:
    """As one large number: byte by byte takes fifty times as long."""
    length = len(body)
    repeated = (mask * (length // 4 + 1))[:length]
    return (int.from_bytes(body, "big") ^ int.from_bytes(repeated, "big")).to_bytes(length, "big")
