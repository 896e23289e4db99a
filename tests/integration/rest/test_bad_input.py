"""Bad input gets a clear 4xx and changes nothing: each case over real HTTP, with the state's digest before and
after.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import socket
from pathlib import Path

import pytest

SUBMIT = "/api/v1/tasks"
BATCH = "/api/v1/tasks/batch"

BAD_BODIES = [
    (SUBMIT, b"", 400),
    (SUBMIT, b"nonsense", 400),
    (SUBMIT, b"[" * 100_000, 400),
    (SUBMIT, b'{"a":' * 100_000, 400),
    (SUBMIT, b'{"command": "x", "gpu_count": NaN}', 400),
    (SUBMIT, b'{"command": "x", "gpu_count": -1}', 400),
    (SUBMIT, b'{"command": "x", "gpu_count": 1e30}', 400),
    (SUBMIT, b'{"command": "x", "gpu_count": 1.5}', 400),
    (SUBMIT, b'{"command": "x", "gpu_count": "two"}', 400),
    (SUBMIT, b'{"command": ""}', 400),
    (SUBMIT, b'{"command": "x", "env": {"A": "\\u0000"}}', 400),
    (SUBMIT, b'{"command": "x", "name": "a\\nb"}', 400),
    (SUBMIT, b'{"command": "x", "workdir": "/../etc"}', 400),
    (SUBMIT, b'{"command": "x", "command": "y"}', 400),
    (SUBMIT, b'{"command": "\xff"}', 400),
    (SUBMIT, b'{"command": "x", "after": ["task-1"]}', 422),
    (SUBMIT, b'{"command": "x", "array": "0-9999999"}', 400),
    (SUBMIT, b'{"command": "x", "y": "' + b"z" * (1 << 20) + b'"}', 413),
    (BATCH, b'{"tasks": []}', 400),
    (BATCH, b'{"tasks": [{"command": "x"}, {"command": "x", "gpu_count": -1}]}', 400),
    (BATCH, b'{"tasks": [' + b",".join([b'{"command":"x"}'] * 10_001) + b"]}", 413),
    (BATCH, b'{"tasks": "' + b"z" * (8 << 20) + b'"}', 413),
    (BATCH, b"[" * 1_000_000, 400),
    ("/api/tasks", b'{"gpu_request": -1}', 400),
    ("/api/v1/tasks/cancel", b"{}", 400),
    ("/api/v1/tasks/cancel", b'{"task_ids": ["../1"]}', 400),
    ("/api/v1/tasks/cancel", b'{"task_ids": ["1"], "x": "' + b"z" * (1 << 20) + b'"}', 413),
    ("/api/v1/tasks/cancel", b'{"task_ids": {}}', 400),
    ("/api/v1/tasks/cancel", b'{"status": []}', 400),
    ("/api/v1/tasks/cancel", b'{"status": {}}', 400),
    ("/api/v1/nodes/n1/drain", b'{"reason": "a\\nb"}', 400),
    ("/api/v1/nodes/n1/drain", b"[", 400),
]


@pytest.mark.parametrize(("path", "body", "status"), BAD_BODIES, ids=range(len(BAD_BODIES)))
def test_a_bad_body_is_a_problem_and_changes_nothing(world, path, body, status) -> None:
    world.add_node()
    before = world.digest()
    reply = world.ask("POST", path, raw=body)
    assert reply.status == status
    assert reply.headers["content-type"] == "application/problem+json"
    assert reply.body["status"] == status
    assert reply.body["detail"]
    assert len(reply.raw) < 5_000
    assert world.digest() == before


def test_a_hundred_megabytes_are_refused_and_leave_no_trace_in_memory(world) -> None:
    """By the announced length, and as they come when none is announced. The sender gets to read the answer."""
    world.submit()
    before = world.digest()
    resident = rss_mb()
    block = b"x" * (1 << 20)
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", world.port, timeout=60)) as connection:
        connection.putrequest("POST", SUBMIT)
        connection.putheader("Content-Type", "application/json")
        connection.putheader("Content-Length", str(100 << 20))
        connection.endheaders()
        for _ in range(100):
            connection.send(block)
        response = connection.getresponse()
        assert response.status == 413
        assert json.loads(response.read())["code"] == "body_too_large"
        connection.request("GET", "/health")  # the connection is still good
        assert connection.getresponse().read()
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", world.port, timeout=60)) as connection:
        connection.request(
            "POST",
            BATCH,
            body=(block for _ in range(100)),
            headers={"Content-Type": "application/json"},
            encode_chunked=True,
        )
        assert connection.getresponse().status == 413
    assert world.digest() == before
    assert rss_mb() - resident < 50


def rss_mb() -> float:
    status = Path("/proc/self/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS"))) / 1024


TRICKS = [
    "..",
    "../..",
    "..%2f..%2fetc%2fpasswd",
    "%2e%2e%2f%2e%2e",
    "....//....//",
    "%252e%252e%252f",
    "..%5c..%5c",
    "%00",
    "task-1%00.txt",
    "task-%2e%2e",
    "task--1",
    "task-0",
    "task-1.5",
    "task-1e3",
    "task-٣",
    "%ff%fe",
    "task-99999999999999999999",
    "-1",
    "1;ls",
    "1|id",
    "$(id)",
    "'%20OR%201=1--",
    "%0d%0aX-Injected:%201",
    "~root",
    "con",
    "1/../2",
    "./1",
    "%e2%80%a8",
    "\\\\server\\share",
    "file:%2f%2f%2fetc%2fpasswd",
]


def test_a_thousand_path_tricks_lead_nowhere(world, tmp_path) -> None:
    world.submit()
    before = world.digest()
    choose = random.Random(7)
    connection = http.client.HTTPConnection("127.0.0.1", world.port, timeout=30)
    with contextlib.closing(connection):
        for number in range(1_000):
            trick = "".join(choose.choice(TRICKS) for _ in range(choose.randint(1, 3)))
            tail = choose.choice(["", "/logs", "/why", "/events", "/logs?attempt=1"])
            folder = choose.choice(["tasks", "nodes"])
            method = choose.choice(["GET", "DELETE"])
            # http.client refuses some of these itself, so the line is written by hand
            path = f"/api/v1/{folder}/{trick}{tail}".encode().replace(b" ", b"%20")
            connection.connect() if connection.sock is None else None
            connection.sock.sendall(method.encode() + b" " + path + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
            response = http.client.HTTPResponse(connection.sock, method=method)
            response.begin()
            body = response.read()
            assert response.status in {400, 404, 405}, (number, path, response.status)
            assert b"root:" not in body
            assert response.getheader("X-Injected") is None
            assert response.getheader("content-type") == "application/problem+json", (path, body)
            if response.will_close:
                connection.close()
    assert world.digest() == before


@pytest.mark.parametrize(
    "sent",
    [
        b"nonsense\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"POST /api/v1/tasks HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
        b"POST /api/v1/tasks HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
    ],
)
def test_what_is_not_http_is_answered_with_a_problem(world, sent) -> None:
    with socket.create_connection(("127.0.0.1", world.port), timeout=30) as client:
        client.sendall(sent)
        answer = client.recv(65_536)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"application/problem+json" in answer


def test_endless_headers_are_cut_off(world) -> None:
    with socket.create_connection(("127.0.0.1", world.port), timeout=30) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n")
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for number in range(3_000):
                client.sendall(b"X-%d: %b\r\n" % (number, b"y" * 1000))
        with contextlib.suppress(ConnectionResetError):
            assert client.recv(100).startswith(b"HTTP/1.1 431 ")
    assert world.ask("GET", "/health").status == 200


def test_trailers_do_not_become_headers(world) -> None:
    """A trailer comes after all checks of the headers, so it must not affect the request."""
    body = b'{"command":"x"}'
    with socket.create_connection(("127.0.0.1", world.port), timeout=30) as client:
        head = b"POST /api/v1/tasks HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        client.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n" % (len(body), body))
        client.sendall(
            b"X-Request-Id: from-a-trailer\r\nIdempotency-Key: from-a-trailer\r\nHost: evil\r\n\r\n"
        )
        answer = client.recv(4096)
    assert answer.startswith(b"HTTP/1.1 201 "), answer
    assert b"from-a-trailer" not in answer
    # all in one piece: the request is looked at when the trailers have been read
    with socket.create_connection(("127.0.0.1", world.port), timeout=30) as client:
        client.sendall(
            head
            + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n" % (len(body), body)
            + b"X-Request-Id: from-a-trailer\r\nHost: evil\r\n\r\n"
        )
        answer = client.recv(4096)
    assert answer.startswith(b"HTTP/1.1 201 "), answer
    assert b"from-a-trailer" not in answer


def test_endless_trailers_are_cut_off(world) -> None:
    with socket.create_connection(("127.0.0.1", world.port), timeout=30) as client:
        head = b"POST /api/v1/tasks HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        client.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n")
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for number in range(3_000):
                client.sendall(b"X-%d: %b\r\n" % (number, b"y" * 1000))
            while client.recv(65_536):
                pass
    assert world.ask("GET", "/health").status == 200


def test_a_connection_that_never_comes_to_the_point_is_closed(world, monkeypatch) -> None:
    monkeypatch.setattr("dgpu.service.rest.protocol.HEADER_SECONDS", 0.2)
    with socket.create_connection(("127.0.0.1", world.port), timeout=30) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: loc")
        assert client.recv(100) == b""


def test_a_body_that_stops_coming_is_given_up(world, monkeypatch) -> None:
    monkeypatch.setattr("dgpu.service.rest.submit.BODY_SECONDS", 0.2)
    with socket.create_connection(("127.0.0.1", world.port), timeout=30) as client:
        head = b"POST /api/v1/tasks HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        client.sendall(head + b'Content-Length: 50\r\n\r\n{"command": ')
        assert client.recv(1000).startswith(b"HTTP/1.1 408 ")


def test_a_client_that_leaves_in_the_middle_leaves_nothing(world) -> None:
    before = world.digest()
    with socket.create_connection(("127.0.0.1", world.port), timeout=30) as client:
        head = b"POST /api/v1/tasks HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        client.sendall(head + b'Content-Length: 50\r\n\r\n{"command": "x"}')
    assert world.ask("GET", "/health").status == 200
    assert world.digest() == before


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/api/v1/nodes/n1/drain", {"reason": "two\nlines"}, "reason"),
        ("/api/v1/tasks/cancel", {"task_ids": []}, "task_ids"),
        ("/api/v1/tasks/cancel", {"status": []}, "status"),
    ],
)
def test_the_path_of_a_bad_field_is_named(world, path, body, field) -> None:
    reply = world.ask("POST", path, body)
    assert reply.status == 400
    assert [error["path"] for error in reply.body["errors"]] == [field]
    assert "got null" not in reply.body["detail"]
