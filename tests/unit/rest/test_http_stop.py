"""Requests that a stop of the scheduler cuts short."""

from __future__ import annotations

import asyncio
import socket

from dgpu.core.model.ids import TaskId
from dgpu.service.rest.http_server import HttpServer
from dgpu.service.results.recent import RecentResults


def test_a_request_without_an_answer_ends_with_its_connection() -> None:
    """An answer of 500 would end the program that waits; after a closed connection, it asks again."""

    async def run() -> bytes:
        has_begun = asyncio.Event()

        async def endless(scope, receive, send) -> None:
            has_begun.set()
            await asyncio.Event().wait()

        listening = socket.create_server(("127.0.0.1", 0))
        server = HttpServer(endless)
        await server.start(listening)
        reader, writer = await asyncio.open_connection(*listening.getsockname())
        writer.write(b"GET /api/v1/tasks/task-1/result?wait=60 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await has_begun.wait()
        await server.stop(grace_seconds=0.01)
        try:
            return await reader.read()
        except ConnectionResetError:
            return b""
        finally:
            writer.close()

    assert asyncio.run(run()) == b""


def test_a_stop_ends_the_waits_for_results() -> None:
    async def run() -> None:
        recent = RecentResults()
        waiting = asyncio.create_task(recent.wait([TaskId(1), TaskId(2)], 3_600))
        await asyncio.sleep(0)  # it waits now
        assert recent._waits
        recent.close()
        await waiting
        await recent.wait([TaskId(3)], 3_600)
        assert recent._waits == {}

    asyncio.run(asyncio.wait_for(run(), 60))
