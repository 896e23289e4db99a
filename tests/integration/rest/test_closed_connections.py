"""A closed connection leaves nothing in memory. The garbage collector of a scheduler under load runs rarely."""

from __future__ import annotations

import gc
import http.client
import socket
import time
from collections.abc import Callable

import pytest

from dgpu.service.rest.protocol import HttpProtocol
from rest_world import RestWorld

PATIENCE_S = 15.0


def left() -> int:
    return sum(isinstance(each, HttpProtocol) for each in gc.get_objects())


def idle(port: int) -> None:
    socket.create_connection(("127.0.0.1", port), timeout=30).close()


def asking(port: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    for _ in range(3):
        connection.request("GET", "/api/v1/tasks")
        assert connection.getresponse().read()
    connection.close()


def closed_by_the_server(port: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/api/v1/tasks", headers={"Connection": "close"})
    assert connection.getresponse().read()


def not_http(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(b"EHLO example.org\r\n\r\n")
        assert connection.recv(65_536).startswith(b"HTTP/1.1 400")


def half_a_request(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(b"POST /api/v1/tasks HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")


def following(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(
            b"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n"
        )
        assert connection.recv(65_536).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("visit", [idle, asking, closed_by_the_server, not_http, half_a_request, following])
def test_a_closed_connection_leaves_nothing(world: RestWorld, visit: Callable[[int], None]) -> None:
    """A flood of connections took 100 MiB. A cycle would be left by every flood. One flood may be looked at in a moment
    in which something else still refers to its connections.
    """
    visit(world.port)
    assert 0 in (left_by_a_flood(world.port, visit) for _ in range(3))


def left_by_a_flood(port: int, visit: Callable[[int], None]) -> int:
    gc.collect()
    gc.disable()
    try:
        for _ in range(20):
            visit(port)
        deadline = time.monotonic() + PATIENCE_S
        while left() and time.monotonic() < deadline:
            time.sleep(0.05)
        return left()
    finally:
        gc.enable()
