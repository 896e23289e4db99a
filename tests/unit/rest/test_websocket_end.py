from __future__ import annotations

import asyncio
import socket

from dgpu.service.rest.websocket_end import WebSocketEnd
from dgpu.wire.websocket import Kind, encode

PINGS = 100_000


async def test_a_client_that_pings_and_does_not_read_costs_no_memory() -> None:
    ours, theirs = socket.socketpair()
    end = WebSocketEnd(lambda *_: None, max_message_bytes=1_000)
    loop = asyncio.get_running_loop()
    end.transport, _ = await loop.connect_accepted_socket(lambda: end, ours)
    theirs.setblocking(False)
    with theirs:
        await loop.sock_sendall(theirs, encode(Kind.PING, b"x" * 100, masked=True) * PINGS)
        await loop.sock_sendall(theirs, encode(Kind.BINARY, b"last", masked=True))
        received = await end.receive()
        assert received is not None
        assert received.body == b"last"
        assert end.transport.get_write_buffer_size() < 1 << 20
        end.transport.abort()
