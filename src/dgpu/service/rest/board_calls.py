"""The board over HTTP, without the frame: a snapshot, and the stream that dashboards share."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import structlog

from dgpu.service.access.audiences import TooManyAudiences
from dgpu.service.access.principal import Principal
from dgpu.service.board.board import Board
from dgpu.service.board.pieces import PACKED_BEGIN, Listener, Piece
from dgpu.service.rest.backend import Backend, too_many_audiences

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
    backend: Backend, who: Principal, method: str, path: str, headers: dict[bytes, bytes]
) -> tuple[int, bytes, Headers] | None:
    """A snapshot; None: another method."""
    if method != "GET" or path != BOARD_PATH:
        return None
    told: Headers = [(b"content-type", b"application/json"), (b"vary", b"accept-encoding")]
    packs = takes_packed(headers)
    try:
        picture = await backend.board.picture(who.audience, packed=packs)
    except TooManyAudiences:
        raise too_many_audiences() from None
    return 200, picture, [*told, (b"content-encoding", b"gzip")] if packs else told


async def stream(
    backend: Backend, scope: Any, headers: dict[bytes, bytes], extra: Headers, receive: Any, send: Any
) -> None:
    """Runs until the client leaves, or reads nothing for a minute, or is no longer admitted."""
    who, guest = scope["state"]["principal"], scope["state"].get("guest")
    opened = backend.open_stream(who, guest)
    try:
        board = backend.board
        try:
            listener, first = await board.join(who.audience)
        except TooManyAudiences:
            raise too_many_audiences() from None
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
        opened.close()


async def _feed(
    board: Board, listener: Listener, first: Piece, receive: Any, send: Any, *, packs: bool
) -> None:
    left = asyncio.ensure_future(_left(receive, listener))
    pieces = [Piece(first.seq, _RETRY), first]
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
            pieces = board.take(listener)
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
