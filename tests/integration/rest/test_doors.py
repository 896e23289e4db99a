"""Connections that flood, hold on, send ahead and do not read, over real sockets. No figure depends on time: counts and
bytes.
"""

from __future__ import annotations

import contextlib
import errno
import http.client
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from dgpu.service.open_files import HttpLimits
from dgpu.service.rest import turns as turns_module
from rest_world import RestWorld

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
LIMITS = HttpLimits(total=40, others=30, per_uid=10, per_address=20)
PAGE = b"GET /api/v1/tasks?limit=1000 HTTP/1.1\r\nHost: localhost\r\n\r\n"
PATIENCE_S = 60.0

FLOOD = """
import encodings.idna, os, socket, sys, time
os.setgid(65534); os.setuid(65534)
port, wanted, sent = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3].encode()
held = []
while len(held) < wanted:
    client = socket.create_connection(("127.0.0.1", port), timeout=60)
    if sent:
        client.sendall(sent)
    held.append(client)
print("flooded", flush=True)
sys.stdin.read()
"""


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def answers(client: socket.socket, number: int) -> Iterator[tuple[int, bytes]]:
    """Read through one buffer: it may hold the beginning of the next one."""
    with client.makefile("rb") as file:
        for _ in range(number):
            status = int(file.readline().split()[1])
            headers = http.client.parse_headers(file)
            yield status, file.read(int(headers["content-length"]))


@pytest.fixture
def small(tmp_path) -> Iterator[RestWorld]:
    """A scheduler with few places."""
    with RestWorld(tmp_path, limits=LIMITS) as running:
        yield running


@contextlib.contextmanager
def flood(port: int, number: int, sent: str = "") -> Iterator[subprocess.Popen[str]]:
    """Connections of another user without a token."""
    command = [sys.executable, "-c", FLOOD, str(port), str(number), sent]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "flooded\n"
        yield process
    finally:
        process.kill()
        process.communicate()


@needs_root
@pytest.mark.parametrize(
    "sent", ["", "GET /api/v1/tasks HTTP/1.1\r\nHost: loc"], ids=["idle", "half a request"]
)
def test_the_owner_gets_in_while_another_user_floods(small, sent) -> None:
    """1,500 idle connections locked the owner out, and the next journal segment could not be opened."""
    kept = http.client.HTTPConnection("127.0.0.1", small.port, timeout=30)
    kept.request("GET", "/health")
    assert kept.getresponse().read()
    with flood(small.port, 1_500, sent):
        assert small.doors.count <= LIMITS.per_uid + 1
        for _ in range(20):
            assert small.ask("GET", "/api/v1/tasks").status == 200
        assert small.ask("POST", "/api/v1/tasks", {"command": "x"}).status == 201
        kept.request("GET", "/api/v1/nodes")  # an idle connection of the owner is not shed for strangers
        assert kept.getresponse().status == 200
        assert small.doors.shed + small.doors.refused >= 1_400
    kept.close()
    until(lambda: small.doors.count == 0)


def test_connections_beyond_the_total_are_told_so(small) -> None:
    """All of them at work: nothing can be shed."""
    held = []
    for _ in range(LIMITS.total):
        client = socket.create_connection(("127.0.0.1", small.port), timeout=30)
        client.sendall(b"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert client.recv(1000).startswith(b"HTTP/1.1 200 ")
        held.append(client)
    with socket.create_connection(("127.0.0.1", small.port), timeout=30) as one_more:
        answer = one_more.recv(1000)
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b'"too_many_connections"' in answer
    assert small.doors.refused == 1
    held.pop().close()
    until(lambda: small.doors.count < LIMITS.total)
    shown = small.ask("GET", "/ready").body["connections"]
    assert (shown["http_refused"], shown["http_max"]) == (1, LIMITS.total)
    assert shown["http"] == LIMITS.total
    assert 0 < shown["files"] < shown["files_max"]
    for client in held:
        client.close()


def test_the_oldest_idle_connection_of_the_owner_makes_room(small) -> None:
    held = [socket.create_connection(("127.0.0.1", small.port), timeout=30) for _ in range(LIMITS.total)]
    until(lambda: small.doors.count == LIMITS.total)
    assert small.ask("GET", "/api/v1/tasks").status == 200
    assert held[0].recv(100) == b""
    for client in held:
        client.close()


def test_no_file_left_is_load_and_passes(small, monkeypatch) -> None:
    """A process without a free file cannot accept. Waiting connections wait; nothing else fails."""
    first = socket.create_connection(("127.0.0.1", small.port), timeout=30)
    until(lambda: small.doors.count == 1)
    real, failures = socket.socket.accept, [5]

    def accept(listening):
        if failures[0]:
            failures[0] -= 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return real(listening)

    monkeypatch.setattr(socket.socket, "accept", accept)
    assert small.ask("GET", "/api/v1/tasks").status == 200
    assert small.doors.accept_pauses == 5
    assert "http_accept_pauses_total 5\n" in small.ask("GET", "/metrics").raw.decode()
    first.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert first.recv(100).startswith(b"HTTP/1.1 200 ")  # the owner's is not shed
    first.close()


@pytest.fixture
def pages(tmp_path) -> Iterator[RestWorld]:
    with RestWorld(tmp_path) as running:
        running.ask(
            "POST", "/api/v1/tasks/batch", {"task": {"command": "true", "name": "x" * 200}, "count": 1_000}
        )
        yield running


def test_requests_sent_ahead_are_answered_one_by_one_in_their_order(world) -> None:
    paths = [f"/api/v1/tasks/{number}" for number in range(1, 301)]
    with socket.create_connection(("127.0.0.1", world.port), timeout=30) as client:
        client.sendall(
            b"".join(b"GET %b HTTP/1.1\r\nHost: localhost\r\n\r\n" % path.encode() for path in paths)
        )
        for path, (status, body) in zip(paths, answers(client, len(paths)), strict=True):
            assert status == 404
            assert f"task-{path.rpartition('/')[2]}" in json.loads(body)["detail"]


@pytest.mark.parametrize("size", [1, 7, 4096, 100_000])
def test_requests_in_pieces_of_any_size_are_understood(world, size) -> None:
    body = json.dumps({"command": "x", "name": "y" * 100}).encode()
    head = b"POST /api/v1/tasks HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    plain = head + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
    chunked = head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"
    get = b"GET /api/v1/tasks/1 HTTP/1.1\r\nHost: localhost\r\n\r\n"
    sent = plain + chunked + get + plain + get
    with socket.create_connection(("127.0.0.1", world.port), timeout=60) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for first in range(0, len(sent), size):
            client.sendall(sent[first : first + size])
        seen = [status for status, _ in answers(client, 5)]
    assert seen == [201, 201, 200, 201, 200]


def test_a_client_that_sends_ahead_and_does_not_read_costs_one_answer(pages) -> None:
    """200 such connections took 300 MB and made all others wait for seconds."""
    one = len(pages.ask("GET", "/api/v1/tasks?limit=1000").raw)
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        client.connect(("127.0.0.1", pages.port))
        client.sendall(PAGE * 50)
        until(lambda: pages.read(lambda _: pages.turns.unsent_bytes()) > 0)
        asked = pages.read(lambda _: len(pages.turns._unsent))
        for _ in range(20):
            assert pages.ask("GET", "/api/v1/tasks?limit=1000").status == 200  # others have their turns
            assert pages.read(lambda _: pages.turns.unsent_bytes()) <= one
        assert asked == 1
        client.setblocking(True)
        seen = 0
        while seen < 2 * one:  # it goes on when the client reads
            seen += len(client.recv(1 << 20))


def test_unread_answers_are_bounded_over_all_connections(pages, monkeypatch) -> None:
    """Beyond the bound the connections go that have not read for longest, and all memory is free again afterwards."""
    one = len(pages.ask("GET", "/api/v1/tasks?limit=1000").raw)
    monkeypatch.setattr(turns_module, "MAX_UNSENT_BYTES", 4 * one)
    monkeypatch.setattr(turns_module, "SLOW_AFTER_SECONDS", 0.05)
    held = []
    for _ in range(20):
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        client.connect(("127.0.0.1", pages.port))
        client.sendall(PAGE * 10)
        held.append(client)
    until(lambda: pages.doors.unread >= 10)
    assert pages.read(lambda _: pages.turns.unsent_bytes()) <= 5 * one
    assert pages.ask("GET", "/api/v1/tasks?limit=1000").status == 200
    for client in held:
        client.close()
    until(lambda: pages.read(lambda _: pages.turns.unsent_bytes()) == 0)
    until(lambda: pages.doors.count == 0)


def test_a_client_that_never_reads_is_given_up(pages, monkeypatch) -> None:
    monkeypatch.setattr("dgpu.service.rest.protocol.UNREAD_SECONDS", 0.3)
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        client.connect(("127.0.0.1", pages.port))
        client.sendall(PAGE)
        until(lambda: pages.doors.unread == 1)
    until(lambda: pages.doors.count == 0)
    assert pages.turns.unsent_bytes() == 0


def test_a_stream_whose_reader_rests_is_not_given_up_so_soon(pages, monkeypatch) -> None:
    """`dgpu logs -f` in a pager."""
    monkeypatch.setattr("dgpu.service.rest.protocol.UNREAD_SECONDS", 0.05)
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        client.connect(("127.0.0.1", pages.port))
        client.sendall(b"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        pages.ask("POST", "/api/v1/tasks/batch", {"task": {"command": "true"}, "count": 5_000})
        for _ in range(10):
            pages.submit()
            time.sleep(0.05)
        assert pages.doors.unread == 0
        assert client.recv(100).startswith(b"HTTP/1.1 200 ")


def test_a_large_read_waits_for_its_turn_and_a_small_one_does_not(pages) -> None:
    """While the turn is taken, no other large page is built, but all other requests are answered."""
    asking = []

    async def take_turn():
        await pages.turns._turn.acquire()

    async def give_turn():
        pages.turns._turn.release()

    pages.run(take_turn())
    try:
        for path in (b"/api/v1/tasks?limit=1000", b"/api/v1/queue?limit=1000", b"/api/v1/history/usage"):
            client = socket.create_connection(("127.0.0.1", pages.port), timeout=30)
            client.sendall(b"GET %b HTTP/1.1\r\nHost: localhost\r\n\r\n" % path)
            asking.append(client)
        until(lambda: pages.turns.waiting == 3)
        assert pages.ask("GET", "/api/v1/tasks?limit=20").status == 200
        assert pages.ask("GET", "/api/v1/nodes").status == 200
        assert pages.ask("POST", "/api/v1/tasks", {"command": "x"}).status == 201
        asking.pop(0).close()  # it left while it waited: its page is not made
        until(lambda: pages.doors.count <= 2)
    finally:
        pages.run(give_turn())
    for client in asking:
        answer = client.recv(100)
        assert answer.startswith(b"HTTP/1.1 "), answer
        client.close()
    until(lambda: pages.turns.waiting == 0)


@pytest.mark.parametrize("chunked", [False, True], ids=["announced", "chunked"])
@pytest.mark.parametrize("path", ["/api/v1/tasks", "/api/v1/tasks/cancel"])
def test_a_body_over_the_limit_gets_its_413_though_the_client_sends_all_of_it_first(
    world, path, chunked
) -> None:
    block = b"x" * (1 << 20)
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", world.port, timeout=60)) as connection:
        headers = {"Content-Type": "application/json"}
        if not chunked:
            headers["Content-Length"] = str(40 << 20)
        connection.request("POST", path, (block for _ in range(40)), headers, encode_chunked=chunked)
        response = connection.getresponse()
        assert response.status == 413
        assert json.loads(response.read())["code"] == "body_too_large"


def test_a_client_that_closes_after_a_413_reads_it_whole(world) -> None:
    """`Connection: close` and a body still under way: a close at once would make the kernel drop the answer."""
    with socket.create_connection(("127.0.0.1", world.port), timeout=60) as client:
        head = b"POST /api/v1/tasks HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        client.sendall(head + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % (30 << 20))
        for _ in range(30):
            client.sendall(b"x" * (1 << 20))
        answer = b""
        while piece := client.recv(65_536):
            answer += piece
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b'"body_too_large"' in answer
    until(lambda: world.doors.count == 0)


@pytest.mark.parametrize(
    ("sent", "status"),
    [(b"nonsense\r\n\r\n", b"400"), (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ", b"431")],
)
def test_the_last_answer_is_read_though_much_more_was_sent(world, sent, status) -> None:
    with socket.create_connection(("127.0.0.1", world.port), timeout=60) as client:
        client.sendall(sent)
        for _ in range(64):
            client.sendall(b"y" * (64 << 10))
        answer = b""
        while piece := client.recv(65_536):
            answer += piece
    assert answer.startswith(b"HTTP/1.1 " + status)
    assert b"application/problem+json" in answer
    until(lambda: world.doors.count == 0)


def test_a_client_that_lingers_on_is_cut_off(world, monkeypatch) -> None:
    monkeypatch.setattr("dgpu.service.rest.protocol.LINGER_SECONDS", 0.2)
    with socket.create_connection(("127.0.0.1", world.port), timeout=60) as client:
        client.sendall(b"nonsense\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 400 ")
        until(lambda: world.doors.count == 0)
        assert client.fileno() >= 0  # though this end is still open
