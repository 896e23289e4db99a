"""The token rule with a real other user, and the rules for pages."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
import threading

import pytest

from dgpu.service.rest.peer import PeerUids
from rest_world import TOKEN

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")

ASK = """
import encodings.idna, http.client, json, os, sys
os.setgid(65534); os.setuid(65534)
connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=30)
method, path, body, headers = json.loads(sys.argv[2])
connection.request(method, path, body, headers)
response = connection.getresponse()
print(json.dumps([response.status, response.read().decode()]))
"""
SEND_AND_CLOSE = """
import encodings.idna, os, socket, sys
os.setgid(65534); os.setuid(65534)
body = b'{"command": "x"}'
head = b"POST /api/v1/tasks HTTP/1.1\\r\\nHost: localhost\\r\\nContent-Type: application/json\\r\\n"
for _ in range(50):
    client = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
    client.sendall(head + b"Content-Length: %d\\r\\n\\r\\n" % len(body) + body)
    client.close()
"""


def as_nobody(world, method: str, path: str, body: str | None = None, **headers: str) -> tuple[int, str]:
    wanted = {name.replace("_", "-"): value for name, value in headers.items()}
    command = [sys.executable, "-c", ASK, str(world.port), json.dumps([method, path, body, wanted])]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    status, text = json.loads(answer)
    return status, text


@needs_root
def test_another_user_needs_the_token(world) -> None:
    json_body = {"Content_Type": "application/json"}
    before = world.digest()
    assert as_nobody(world, "GET", "/api/v1/tasks")[0] == 401
    assert as_nobody(world, "POST", "/api/v1/tasks", '{"command": "id"}', **json_body)[0] == 401
    wrong = as_nobody(world, "GET", "/api/v1/tasks", Authorization="Bearer wrong")
    assert wrong[0] == 403
    assert "wrong_token" in wrong[1]
    assert world.digest() == before
    assert as_nobody(world, "GET", "/health")[0] == 200
    bearer = f"Bearer {TOKEN}"
    assert as_nobody(world, "GET", "/api/v1/tasks", Authorization=bearer)[0] == 200
    assert (
        as_nobody(world, "POST", "/api/v1/tasks", '{"command": "id"}', Authorization=bearer, **json_body)[0]
        == 201
    )


@needs_root
def test_another_user_who_sends_and_closes_at_once_is_not_taken_for_root(world) -> None:
    """The kernel reports uid 0 for a socket that its process has closed."""
    before = world.digest()
    gone = threading.Event()
    world.loop.call_soon_threadsafe(gone.wait, 60)  # the server looks at them when all are closed
    subprocess.run([sys.executable, "-c", SEND_AND_CLOSE, str(world.port)], timeout=60, check=True)
    gone.set()
    assert world.ask("GET", "/health").status == 200
    assert world.digest() == before


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Host": "evil.example"}, 421),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ({"Content-Type": None}, 415),
    ],
)
def test_a_web_page_cannot_run_commands(world, headers, status) -> None:
    before = world.digest()
    for path in ("/api/v1/tasks", "/api/v1/tasks/batch", "/api/tasks", "/api/v1/tasks/cancel"):
        reply = world.ask("POST", path, {"command": "x"}, headers)
        assert reply.status == status
        assert reply.headers["content-type"] == "application/problem+json"
        assert "access-control-allow-origin" not in reply.headers
    assert world.digest() == before


@pytest.mark.parametrize("encoding", ["gzip", "br", "deflate, gzip", "x-nonsense"])
@pytest.mark.parametrize(
    "path", ["/api/v1/tasks", "/api/v1/tasks/batch", "/api/v1/tasks/cancel", "/api/v1/session"]
)
def test_a_body_in_an_unknown_encoding_is_refused(world, path, encoding) -> None:
    """Compressed bytes are not JSON, and the complaint about bad JSON would hide why."""
    before = world.digest()
    reply = world.ask("POST", path, {"command": "x"}, {"Content-Encoding": encoding})
    assert (reply.status, reply.body["code"]) == (415, "unsupported_encoding")
    assert encoding in reply.body["detail"]
    assert world.digest() == before
    assert (
        world.ask("POST", "/api/v1/tasks", {"command": "x"}, {"Content-Encoding": "identity"}).status == 201
    )


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("POST", "/api/v1/nodes", "GET"),
        ("PUT", "/api/v1/tasks", "POST"),
        ("PUT", "/api/v1/tasks/batch", "POST"),
        ("PATCH", "/api/v1/quota", "PUT"),
        ("POST", "/api/v1/board", "GET"),
        ("PUT", "/api/v1/session", "DELETE"),
    ],
)
def test_a_method_that_a_call_does_not_have_is_told_whatever_the_body_is(
    world, method, path, allowed
) -> None:
    """A client that is asked for JSON would send it, only to get another refusal."""
    reply = world.ask(method, path, raw=b"a=b", headers={"Content-Type": "application/x-www-form-urlencoded"})
    assert (reply.status, reply.body["code"]) == (405, "method_not_allowed")
    assert allowed in reply.headers["allow"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", "/api/v1/quota"),
        ("POST", "/api/v1/whatif"),
        ("POST", "/api/v1/nodes/n1/drain"),
        ("POST", "/api/v1/session"),
        ("POST", "/api/v1/session/code"),
        ("POST", "/api/v1/alerts/test"),
        ("POST", "/api/v1/tasks/7/retry"),
    ],
)
def test_every_write_needs_json(world, method, path) -> None:
    before = world.digest()
    reply = world.ask(method, path, raw=b"{}", headers={"Content-Type": "text/plain"})
    assert (reply.status, reply.body["code"]) == (415, "json_needed")
    assert world.digest() == before


def test_a_submit_takes_no_query(world) -> None:
    """`?dry_run=true` would have submitted."""
    for path in ("/api/v1/tasks", "/api/v1/tasks/batch", "/api/tasks"):
        reply = world.ask("POST", f"{path}?dry_run=true", {"command": "x"})
        assert (reply.status, reply.body["errors"][0]["path"]) == (400, "dry_run")
    assert world.ask("GET", "/api/v1/tasks").body["total"] == 0


def test_a_page_of_our_own_may_write(world) -> None:
    reply = world.ask("POST", "/api/v1/tasks", {"command": "x"}, {"Origin": f"http://127.0.0.1:{world.port}"})
    assert reply.status == 201


def test_the_uid_is_looked_up_once_per_connection(world, monkeypatch) -> None:
    asked = []
    real = PeerUids.uid
    monkeypatch.setattr(PeerUids, "uid", lambda uids, *ends: asked.append(ends) or real(uids, *ends))
    connection = http.client.HTTPConnection("127.0.0.1", world.port, timeout=30)
    for _ in range(3):
        connection.request("GET", "/api/v1/tasks")
        assert connection.getresponse().read()
    connection.close()
    assert len(asked) == 1


@pytest.mark.parametrize("second", [b"evil.example", b"localhost"])
@pytest.mark.parametrize("line", [b"POST /api/v1/tasks", b"GET /", b"GET /health"])
def test_two_host_headers_are_a_bad_request(world, line, second) -> None:
    """A proxy in front may route by the one and this server check the other."""
    before = world.digest()
    with socket.create_connection(("127.0.0.1", world.port), timeout=30) as client:
        body = b'{"command":"x"}'
        client.sendall(
            line + b" HTTP/1.1\r\nHost: localhost\r\nHost: " + second + b"\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        )
        answer = client.recv(4096)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b'"repeated_host"' in answer
    assert world.digest() == before
