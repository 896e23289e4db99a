"""Events of the board's stream, and the dashboards that wait for them."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from collections import deque

from dgpu.service.access.principal import Tenants
from dgpu.wire.board_answers import BoardFigures

_PACKING_LEVEL = 4
PACKED_BEGIN = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"  # the head of a gzip stream


class Piece:
    """One event of the stream, encoded once, and compressed once if a client wants that.

    Compressed pieces may follow each other in the gzip stream of any client: each has its own compressor and ends at a
    byte boundary, so it refers to no earlier data.
    """

    __slots__ = ("_packed", "plain", "seq")

    def __init__(self, seq: int, plain: bytes) -> None:
        self.seq = seq
        self.plain = plain
        self._packed = b""

    @property
    def packed(self) -> bytes:
        if not self._packed:
            self._packed = pack(self.plain)
        return self._packed


def pack(plain: bytes) -> bytes:
    packer = zlib.compressobj(_PACKING_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    return packer.compress(plain) + packer.flush(zlib.Z_SYNC_FLUSH)


class Audience:
    """The dashboards of readers of the same tenants. They get the same bytes."""

    def __init__(self, tenants: Tenants) -> None:
        self.tenants = tenants
        self.listeners: set[Listener] = set()
        self.seq = 1
        self.told: BoardFigures | None = None  # the figures of the last event
        self.sent_at_ms = 0
        self.snapshot: Piece | None = None  # None: the next reader needs a new one
        self._packed_picture: tuple[Piece, bytes] | None = None

    def publish(self, piece: Piece) -> None:
        for listener in self.listeners:
            listener.offer(piece)

    def packed(self, snapshot: Piece, picture: bytes) -> bytes:
        """The picture as a complete gzip file, compressed once."""
        if self._packed_picture is None or self._packed_picture[0] is not snapshot:
            self._packed_picture = (snapshot, gzip.compress(picture, _PACKING_LEVEL, mtime=0))
        return self._packed_picture[1]


class Listener:
    """One dashboard. Unread events are dropped after a while, and the dashboard gets a resync instead."""

    MAX_UNREAD = 16

    __slots__ = ("_seen_seq", "arrived", "audience", "lagged", "pieces")

    def __init__(self, audience: Audience, snapshot: Piece) -> None:
        self.audience = audience
        self._seen_seq = snapshot.seq
        self.pieces: deque[Piece] = deque()
        self.lagged = False
        self.arrived = asyncio.Event()

    def offer(self, piece: Piece) -> None:
        if piece.seq <= self._seen_seq:
            return  # the snapshot of this listener contains it
        if self.lagged or len(self.pieces) >= self.MAX_UNREAD:
            self.pieces.clear()
            self.lagged = True
        else:
            self.pieces.append(piece)
        self.arrived.set()

    def restart(self, snapshot: Piece) -> None:
        """After a lag: the events up to this picture are in it."""
        self._seen_seq = snapshot.seq
        self.lagged = False
