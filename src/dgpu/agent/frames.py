"""Length-prefixed JSON between an agent and its keeper. Standard library only: the keeper imports nothing else."""

from __future__ import annotations

import json
import struct
from typing import Any

# 2: agent and keeper ping each other, orders have a start deadline; 3: files with secrets, tasks as other users;
# 4: containers; 5: directories with an upload; 6: terminals; 7: output files; 8: workers;
# 9: terminals of containers
PROTOCOL = 10
SECRETS_PROTOCOL = 3
USERS_PROTOCOL = 3
CONTAINERS_PROTOCOL = 4
UPLOADS_PROTOCOL = 5
TERMINALS_PROTOCOL = 6
FILES_PROTOCOL = 7
WORKERS_PROTOCOL = 8
CONTAINER_TERMINALS_PROTOCOL = 9
CONTAINER_FILES_PROTOCOL = 10
OLDEST_PROTOCOL = 1  # still supported by this version
MAX_FRAME_BYTES = 64 * 1024 * 1024
_LENGTH = struct.Struct(">I")

Frame = dict[str, Any]  # keys are verbs, values are batches; see keeper_link.py for the list


class FrameTooLarge(Exception):  # noqa: N818 - a fact about the peer
    pass


def encode(frame: Frame) -> bytes:
    body = json.dumps(frame, separators=(",", ":")).encode("utf-8", "surrogatepass")
    return _LENGTH.pack(len(body)) + body


class Decoder:
    """Bytes in, complete frames out."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, received: bytes) -> list[Frame]:
        buffer = self._buffer
        buffer += received
        frames: list[Frame] = []
        start = 0
        while len(buffer) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(buffer, start)
            if length > MAX_FRAME_BYTES:
                raise FrameTooLarge(f"a frame of {length} bytes")
            end = start + _LENGTH.size + length
            if len(buffer) < end:
                break
            frames.append(json.loads(buffer[start + _LENGTH.size : end].decode("utf-8", "surrogatepass")))
            start = end
        if start:
            del buffer[:start]
        return frames
