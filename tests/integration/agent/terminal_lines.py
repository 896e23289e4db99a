"""The agent's end of the connections to the process that holds terminals."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

from dgpu.agent.keeper_link import connect
from dgpu.agent.terminal_frames import (
    CLOSED,
    DATA,
    ERRORS,
    OPEN,
    SIZE,
    SOCKET_NAME,
    FrameDecoder,
    encode,
    encode_json,
)
from integration.agent.keeping import Kept


class Line:
    """One connection, as an agent opens it for a channel."""

    def __init__(self, kept: Kept, lease: int, *, node: str = "n1", **asked: Any) -> None:
        self._link: socket.socket = connect(Path(kept.settings.directory), SOCKET_NAME)
        self._link.settimeout(60)
        self._decoder = FrameDecoder()
        self.frames: list[tuple[bytes, bytes]] = []
        self.text = b""
        self.errors = b""
        self.closed: dict[str, Any] = {}
        self._link.sendall(encode_json(OPEN, {"lease": lease, "node": node, **asked}))

    def send(self, kind: bytes, body: bytes = b"") -> None:
        while not self.frames:  # not before OPENED
            self._take()
        self._link.sendall(encode(kind, body))

    def resize(self, rows: int, columns: int) -> None:
        self.send(SIZE, json.dumps([rows, columns]).encode())

    def wait_text(self, wanted: bytes) -> None:
        while wanted not in self.text:
            assert self._take() or wanted in self.text, f"no {wanted!r} in {self.text!r}: {self.closed}"

    def wait_closed(self) -> dict[str, Any]:
        while self._take():
            pass
        return self.closed

    def leave(self) -> None:
        self._link.close()

    def _take(self) -> bool:
        received = self._link.recv(65_536)
        for kind, body in self._decoder.feed(received):
            self.frames.append((kind, body))
            self.text += body if kind == DATA else b""
            self.errors += body if kind == ERRORS else b""
            if kind == CLOSED:
                self.closed = json.loads(body)
        return bool(received) and not self.closed


def run_in(kept: Kept, lease: int, command: str, **asked: Any) -> Line:
    return Line(kept, lease, argv=["/bin/sh", "-c", command], env={}, **asked)
