"""Who may ask: every way to be let in, and every way not to be."""

from __future__ import annotations

import os
import socket
import stat

import pytest

from dgpu.service.access.owner_token import load_token
from dgpu.service.rest.access import Access
from dgpu.service.rest.failures import MAX_FAILURES, Peer
from dgpu.service.rest.origins import wrong_content
from dgpu.service.rest.peer import _by_proc, peer_uid
from dgpu.wire.answers import Problem

TOKEN = "t" * 43
OWNER, ROOT, STRANGER, UNKNOWN = Peer(uid=1000), Peer(uid=0), Peer(uid=1001), Peer(uid=None)
JSON = {b"content-type": b"application/json"}


class Time:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def access(mode: str = "loopback", hosts: frozenset[str] = frozenset(), clock: Time | None = None) -> Access:
    return Access(mode=mode, token=TOKEN, clock=clock or Time(), hosts=hosts, own_uid=1000)  # type: ignore[arg-type]


def ask(
    rules: Access,
    peer: Peer,
    method: str = "GET",
    path: str = "/api/v1/tasks",
    **headers: str,
) -> int:
    given = {b"host": b"127.0.0.1:8080"} | (JSON if method == "POST" else {})
    given |= {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
    found = rules.enter(method, path, given, peer)
    return found.status if isinstance(found, Problem) else 200


def test_the_owner_and_root_need_no_token() -> None:
    assert ask(access(), OWNER) == ask(access(), ROOT) == 200
    assert ask(access(), OWNER, "POST") == 200


def test_everybody_else_needs_the_token_also_for_reading() -> None:
    for peer in (STRANGER, UNKNOWN):
        assert ask(access(), peer) == 401
        assert ask(access(), peer, "POST") == 401
        assert ask(access(), peer, authorization=f"Bearer {TOKEN}") == 200
        assert ask(access(), peer, authorization=f"bearer {TOKEN}") == 200
        assert ask(access(), peer, authorization="Bearer wrong") == 403
        assert ask(access(), peer, authorization=f"Basic {TOKEN}") == 403
        assert ask(access(), peer, authorization="Bearer ") == 401
        assert ask(access(), peer, authorization=f"Bearer {TOKEN[:-1]}") == 403


def test_an_empty_token_lets_nobody_in() -> None:
    rules = Access(mode="loopback", token="", clock=Time(), own_uid=1000)
    assert ask(rules, STRANGER, authorization="Bearer x") == 403
    assert ask(rules, STRANGER, authorization="Bearer") == 401


def test_health_and_readiness_are_open() -> None:
    assert ask(access(), STRANGER, path="/health") == ask(access(), UNKNOWN, path="/ready") == 200


def test_wrong_tokens_are_slowed_down_per_user_and_forgiven_later() -> None:
    clock = Time()
    rules = access(clock=clock)
    for _ in range(MAX_FAILURES):
        assert ask(rules, STRANGER, authorization="Bearer guess") == 403
    assert ask(rules, STRANGER, authorization=f"Bearer {TOKEN}") == 429
    assert ask(rules, Peer(uid=1002), authorization=f"Bearer {TOKEN}") == 200
    assert ask(rules, OWNER) == 200
    clock.now += 61
    assert ask(rules, STRANGER, authorization=f"Bearer {TOKEN}") == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8080", 200),
        ("localhost:8080", 200),
        ("LOCALHOST", 200),
        ("[::1]:8080", 200),
        ("10.1.2.3", 200),
        ("evil.example", 421),
        ("localhost.evil.example", 421),
        ("127.0.0.1.evil.example:8080", 421),
        ("", 421),
        ("gpu.lab:8080", 200),
        ("GPU.Lab", 200),
        ("capital.lab", 200),
    ],
)
def test_a_host_that_is_not_ours_is_refused(host, status) -> None:
    """A page can lead a name of its own to 127.0.0.1; the browser then says that name."""
    rules = access(hosts=frozenset({"gpu.lab", "Capital.Lab"}))
    assert ask(rules, OWNER, "POST", host=host) == status


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://127.0.0.1:8080"}, 200),
        ({"origin": "http://127.0.0.1:9999"}, 403),
        ({"sec_fetch_site": "cross-site"}, 403),
        ({"sec_fetch_site": "same-site"}, 403),
        ({"sec_fetch_site": "same-origin", "origin": "http://127.0.0.1:8080"}, 200),
        ({}, 200),
    ],
)
def test_pages_of_another_origin_cannot_write(headers, status) -> None:
    assert ask(access(), OWNER, "POST", **headers) == status
    assert ask(access(), OWNER, "DELETE", **headers) == status
    assert ask(access(), OWNER, "GET", **headers) == 200


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("application/json", 200),
        ("application/json; charset=utf-8", 200),
        ("Application/JSON", 200),
        ("text/plain", 415),
        ("application/x-www-form-urlencoded", 415),
        ("", 415),
        ("application/json; charset=latin-1", 415),
        ("application/jsonx", 415),
    ],
)
def test_writes_need_json(kind, status) -> None:
    """What a form of a web page can send without asking first is never JSON."""
    refused = wrong_content("POST", {b"content-type": kind.encode()})
    assert (refused.status if refused else 200) == status
    assert wrong_content("GET", {b"content-type": kind.encode()}) is None


def test_mode_none_lets_everybody_in_but_no_foreign_page() -> None:
    assert ask(access("none"), UNKNOWN, "POST") == 200
    assert ask(access("none"), UNKNOWN, "POST", origin="http://evil.example") == 403


def test_the_token_file_is_made_once_for_its_owner_only(tmp_path) -> None:
    path = tmp_path / "token"
    token = load_token(path)
    assert len(token) >= 43
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o644)
    assert load_token(path) == token
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_half_a_token_file_is_made_again(tmp_path) -> None:
    path = tmp_path / "token"
    path.write_text("")
    assert len(load_token(path)) >= 43


@pytest.mark.parametrize(
    "content", [b"\xff" * 43, "pässwort".encode() * 8, b"t" * 20 + b"\0" + b"t" * 30, b"two words" * 8]
)
def test_a_token_file_that_no_client_could_send_is_named(tmp_path, content) -> None:
    """Non-ASCII bytes were a traceback. The file stays: it may be another program's, put there by mistake."""
    path = tmp_path / "token"
    path.write_bytes(content)
    with pytest.raises(OSError, match="printable ASCII") as refused:
        load_token(path)
    assert str(path) in str(refused.value)
    assert path.read_bytes() == content


@pytest.mark.parametrize("family", ["127.0.0.1", "::1"])
def test_the_uid_of_the_other_end_is_found_both_ways(family) -> None:
    server = socket.create_server((family, 0), family=socket.AF_INET6 if ":" in family else socket.AF_INET)
    with server, socket.create_connection(server.getsockname()[:2]) as client:
        ours, theirs = server.getsockname()[:2], client.getsockname()[:2]
        accepted, _ = server.accept()
        with accepted:
            assert peer_uid(ours, theirs) == os.getuid()
            assert _by_proc(ours, theirs) == os.getuid()


def test_a_closed_socket_belongs_to_nobody() -> None:
    """The kernel says uid 0 for it; a stranger who sends and closes at once must not pass for root."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        ours, theirs = server.getsockname(), client.getsockname()
        client.sendall(b"x")
        client.close()
        accepted, _ = server.accept()
        with accepted:
            assert peer_uid(ours, theirs) is None
            assert _by_proc(ours, theirs) is None
