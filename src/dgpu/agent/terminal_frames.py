"""Frames between an agent and the process that holds terminals: one connection for each channel. Standard library only.

A frame is its kind, the length of its body, its body. The agent begins with OPEN; OPENED or CLOSED answers it, and
only then it sends more. CLOSED is always the last frame.
"""

from __future__ import annotations

import json
import struct
from typing import Any

OPEN = b"o"  # {"lease", "node"} with {"size"} and {"argv", "env"}; without argv: the terminal of the task
OPENED = b"k"
DATA = b"d"
ERRORS = b"e"  # standard error of a command without a terminal
SIZE = b"s"  # [rows, columns]
END = b"z"  # no more input
CLOSED = b"x"  # {"reason", "detail", "exit_code"}

SOCKET_NAME = "terminals.sock"
MAX_BODY_BYTES = 4 << 20
MAX_DATA_BYTES = 64 << 10
_HEAD = struct.Struct(">cI")


class BadFrame(Exception):  # noqa: N818 - a fact about the peer
    pass


def encode(kind: bytes, body: bytes = b"") -> bytes:
    return _HEAD.pack(kind, len(body)) + body


def encode_json(kind: bytes, value: Any) -> bytes:
    return encode(kind, json.dumps(value).encode())


class FrameDecoder:
    """Bytes in, complete frames out."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, received: bytes) -> list[tuple[bytes, bytes]]:
        """Raises BadFrame."""
        buffer = self._buffer
        buffer += received
        frames: list[tuple[bytes, bytes]] = []
        start = 0
        while len(buffer) - start >= _HEAD.size:
            kind, length = _HEAD.unpack_from(buffer, start)
            if length > MAX_BODY_BYTES:
                raise BadFrame(f"a frame of {length} bytes")
            end = start + _HEAD.size + length
            if len(buffer) < end:
                break
            frames.append((kind, bytes(buffer[start + _HEAD.size : end])))
            start = end
        del buffer[:start]
        return frames
