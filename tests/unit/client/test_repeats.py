"""A client that is told when to come back."""

from __future__ import annotations

import asyncio
import http.server
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from dgpu.client.asynchronous import AsyncClient
from dgpu.client.errors import DgpuError
from dgpu.client.sync import Client

BUSY = b'{"title":"Busy","status":503,"code":"busy","detail":"Busy."}'
KEYS = b'{"title":"Keys","status":429,"code":"too_many_keys","detail":"Too many."}'
EMPTY = b'{"total":0,"nodes":[]}'


class BusyServer(http.server.ThreadingHTTPServer):
    """Refuses so many requests first, and remembers when each came."""

    def __init__(self, refusals: int, status: int, body: bytes, retry_after: str) -> None:
        super().__init__(("127.0.0.1", 0), _Refuser)
        self.refusals, self.status, self.body, self.retry_after = refusals, status, body, retry_after
        self.came_s: list[float] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Refuser(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: BusyServer

    def do_GET(self) -> None:
        server = self.server
        server.came_s.append(time.monotonic())
        is_refused = len(server.came_s) <= server.refusals
        body = server.body if is_refused else EMPTY
        self.send_response(server.status if is_refused else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if is_refused:
            self.send_header("Retry-After", server.retry_after)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def busy() -> Iterator[Callable[..., BusyServer]]:
    servers: list[BusyServer] = []

    def make(**facts: object) -> BusyServer:
        given = {"refusals": 1, "status": 503, "body": BUSY, "retry_after": "1", **facts}
        server = BusyServer(**given)  # type: ignore[arg-type]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return server

    yield make
    for server in servers:
        server.shutdown()
        server.server_close()


def ask(kind: str, url: str) -> object:
    if kind == "sync":
        return Client(url).nodes()

    async def nodes() -> object:
        async with AsyncClient(url) as client:
            return await client.nodes()

    return asyncio.run(nodes())


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize(("status", "body"), [(503, BUSY), (429, KEYS)])
def test_a_client_waits_as_long_as_the_server_asks(busy, kind, status, body) -> None:
    server = busy(status=status, body=body)
    ask(kind, server.url)
    first, second = server.came_s
    assert second - first >= 1.0


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_client_does_not_wait_for_minutes(busy, kind) -> None:
    """The program gets the answer and decides; a repeat before the time would be refused again."""
    server = busy(retry_after="60", refusals=99)
    with pytest.raises(DgpuError, match="Busy"):
        ask(kind, server.url)
    assert len(server.came_s) == 1


@pytest.mark.parametrize("word", ["Wed, 21 Oct 2026 07:28:00 GMT", "-1", "soon", "", "²"])
def test_a_time_that_is_no_number_of_seconds_is_ignored(busy, word) -> None:
    server = busy(retry_after=word.encode().decode("latin-1"), refusals=2)
    ask("sync", server.url)
    assert len(server.came_s) == 3
