"""The board over HTTP, without the frame: a snapshot, and the stream that all dashboards share."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import structlog

from dgpu.service.board.board import PACKED_BEGIN, Board, Listener, Piece
from dgpu.service.rest.backend import Backend

BOARD_PATH = "/api/v1/board"
STREAM_PATH = "/api/v1/board/stream"
PATHS = frozenset({BOARD_PATH, STREAM_PATH})
STALLED_SECONDS = 60.0  # a client that reads nothing for this long is disconnected
_RETRY = b"retry: 1000\n\n"

_log = structlog.get_logger("dgpu.board")

Headers = list[tuple[bytes, bytes]]


def takes_packed(headers: dict[bytes, bytes]) -> bool:
    given = headers.get(b"accept-encoding", b"").lower().replace(b" ", b"")
    return any(
        name == b"gzip" and weight not in {b"q=0", b"q=0.0"}
        for name, _, weight in (part.partition(b";") for part in given.split(b","))
    )


async def answer(
    backend: Backend, method: str, path: str, headers: dict[bytes, bytes]
) -> tuple[int, bytes, Headers] | None:
    """A snapshot; None: another method."""
    if method != "GET" or path != BOARD_PATH:
        return None
    board = backend.board
    await board.refresh()
    told: Headers = [(b"content-type", b"application/json"), (b"vary", b"accept-encoding")]
    if takes_packed(headers):
        return 200, board.picture_packed(), [*told, (b"content-encoding", b"gzip")]
    return 200, board.picture(), told


async def stream(
    backend: Backend, headers: dict[bytes, bytes], extra: Headers, receive: Any, send: Any
) -> None:
    """Runs until the client leaves, or reads nothing for a minute."""
    backend.open_stream()
    try:
        board = backend.board
        listener, first = await board.join()
        try:
            packs = takes_packed(headers)
            told: Headers = [(b"content-type", b"text/event-stream; charset=utf-8"), *extra]
            told += [(b"x-accel-buffering", b"no"), (b"vary", b"accept-encoding")]
            if packs:
                told.append((b"content-encoding", b"gzip"))
            await send({"type": "http.response.start", "status": 200, "headers": told})
            try:
                await _feed(board, listener, first, receive, send, packs=packs)
            except Exception:  # noqa: BLE001 - the answer has begun: no problem can be sent any more
                _log.exception("board_stream_failed")
        finally:
            board.leave(listener)
    finally:
        backend.close_stream()


async def _feed(
    board: Board, listener: Listener, first: Piece, receive: Any, send: Any, *, packs: bool
) -> None:
    left = asyncio.ensure_future(_left(receive, listener))
    pieces = [Piece(board.seq, _RETRY), first]
    begin = PACKED_BEGIN if packs else b""
    try:
        while not left.done():
            if pieces:
                body = begin + b"".join(piece.packed if packs else piece.plain for piece in pieces)
                begin = b""
                async with asyncio.timeout(STALLED_SECONDS):
                    await send({"type": "http.response.body", "body": body, "more_body": True})
            await listener.arrived.wait()
            listener.arrived.clear()
            pieces = listener.take(board)
    except TimeoutError:
        pass  # the connection ends with an unfinished answer, as intended
    except asyncio.CancelledError:  # the service stops: a clean end, after which the browser reconnects
        await send({"type": "http.response.body", "body": b"", "more_body": False})
    finally:
        left.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await left


async def _left(receive: Any, listener: Listener) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    listener.arrived.set()
