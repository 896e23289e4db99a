"""Names of hosts, links, cookies and headers of the proxy."""

from __future__ import annotations

import pytest

from dgpu.core.model.ids import TaskId
from dgpu.service.access.principal import Principal, owner
from dgpu.service.proxy.entry import LINK_SECONDS, MAX_LINKS, MAX_LINKS_OF_USER, Entry, wrong_page
from dgpu.service.proxy.headers import answer_headers, request_head
from dgpu.service.proxy.names import ServiceHost, Site, TaskPort, parse_site
from dgpu.service.rest.access import Access
from dgpu.service.rest.failures import Peer
from dgpu.wire.answers import Problem

HOST = "task-7-8888.localhost"
HEADERS = {b"host": HOST.encode() + b":8081"}
STRANGER = Peer(uid=4_000_000)
OWNER = owner("ann", "uid")


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def entry(clock: Clock) -> Entry:
    access = Access(mode="loopback", token="secret", clock=clock, lasting_clock=clock, own_uid=1_000)
    return Entry(access, clock, over_tls=False)


def cookie_of(entry: Entry, who: Principal = OWNER, host: str = HOST) -> bytes:
    code = entry.new_link(who, host, "/lab").partition("=")[2]
    redeemed = entry.redeem(code, host, HEADERS)
    assert redeemed is not None
    path, line = redeemed
    assert path == "/lab"
    assert entry.redeem(code, host, HEADERS) is None, "a link works once"
    return line.partition(b";")[0]


def code_of(reply: Principal | Problem) -> str:
    assert isinstance(reply, Problem), reply
    return reply.code


def test_names_lead_to_tasks_and_services_and_back() -> None:
    local = Site(port=8081)
    real = parse_site("https://*.apps.example.org", port=8081, has_tls=False)
    port, service = TaskPort(TaskId(7), 8888, 1), ServiceHost("chat", "vision")
    doubled = ServiceHost("my-chat", "team--a")  # a tenant may have two hyphens in a row, a service may not
    assert local.url_of(port) == "http://task-7-8888-r1.localhost:8081/"
    assert local.url_of(service) == "http://chat.vision.localhost:8081/"
    assert real.url_of(service, "/v1") == "https://chat--vision.apps.example.org/v1"
    for site in (local, real):
        for target in (port, service, doubled):
            assert site.target(f"{site.host_of(target).upper()}:99") == target
    for wrong in (
        "localhost",
        "127.0.0.1",
        "task-7-99999.localhost",
        "evil.org",
        ".localhost",
        "a b.c.localhost",
    ):
        assert local.target(wrong) is None, wrong
    for wrong in ("apps.example.org", "https://apps.example.org", "ftp://*.a", "https://*.a/b", "https://*."):
        with pytest.raises(ValueError, match=r"expected a URL like https://\*"):
            parse_site(wrong, port=1, has_tls=True)


def test_a_cookie_is_of_one_host_and_the_session_of_the_dashboard_is_none(entry: Entry, clock: Clock) -> None:
    cookie = cookie_of(entry)
    admitted = entry.admit("POST", HOST, {**HEADERS, b"cookie": b"a=b; " + cookie}, STRANGER)
    assert isinstance(admitted, Principal)
    assert admitted.is_owner
    other = {b"host": b"task-8-8888.localhost:8081", b"cookie": cookie, b"sec-fetch-site": b"none"}
    assert code_of(entry.admit("GET", "task-8-8888.localhost", other, STRANGER)) == "link_needed"
    session = entry._access.sessions.open(OWNER)
    for name in (b"dgpu_session_8081", b"dgpu_port_8081"):
        given = {**HEADERS, b"cookie": name + b"=" + session.encode(), b"sec-fetch-site": b"none"}
        assert code_of(entry.admit("GET", HOST, given, Peer(uid=1_000))) == "link_needed"
    clock.now += 86_401
    late = entry.admit("GET", HOST, {**HEADERS, b"cookie": cookie}, STRANGER)
    assert code_of(late) == "session_ended"


def test_signing_out_of_the_dashboard_ends_its_ports(entry: Entry) -> None:
    sessions = entry._access.sessions
    session = sessions.find(sessions.open(OWNER))
    assert session is not None
    who = entry._access.by_session(session)
    assert isinstance(who, Principal)
    cookie = cookie_of(entry, who)
    sessions.end(session)
    assert code_of(entry.admit("GET", HOST, {**HEADERS, b"cookie": cookie}, STRANGER)) == "session_ended"


def test_links_expire_and_are_bounded_and_of_one_host(entry: Entry, clock: Clock) -> None:
    code = entry.new_link(OWNER, HOST, "/").partition("=")[2]
    assert entry.redeem(code, "task-8-8888.localhost", HEADERS) is None
    of_another = entry.new_link(owner("bob", "uid"), HOST, "/").partition("=")[2]
    codes = [entry.new_link(OWNER, HOST, "/").partition("=")[2] for _ in range(MAX_LINKS_OF_USER + 1)]
    assert entry.redeem(of_another, HOST, HEADERS) is not None, "each user has its own share"
    assert entry.redeem(codes[0], HOST, HEADERS) is None, "the oldest made room"
    assert entry.redeem(codes[1], HOST, HEADERS) is not None
    clock.now += LINK_SECONDS
    assert entry.redeem(codes[2], HOST, HEADERS) is None
    users = [owner(f"u{number}", "uid") for number in range(MAX_LINKS + 1)]
    codes = [entry.new_link(who, HOST, "/").partition("=")[2] for who in users]
    assert entry.redeem(codes[0], HOST, HEADERS) is None, "the oldest of all made room"
    assert entry.redeem(codes[1], HOST, HEADERS) is not None


def test_pages_of_other_hosts_only_open_pages() -> None:
    own = {**HEADERS, b"origin": b"http://" + HEADERS[b"host"], b"sec-fetch-site": b"same-origin"}
    assert wrong_page("POST", own) is None
    assert wrong_page("POST", HEADERS) is None, "a program"
    opens = {
        **HEADERS,
        b"sec-fetch-site": b"cross-site",
        b"sec-fetch-mode": b"navigate",
        b"sec-fetch-dest": b"document",
    }
    assert wrong_page("GET", opens) is None
    assert wrong_page("POST", opens) is not None
    assert wrong_page("GET", {**opens, b"sec-fetch-dest": b"iframe"}) is not None
    assert wrong_page("GET", {**HEADERS, b"sec-fetch-site": b"same-site"}) is not None, (
        "another task of the domain"
    )
    assert wrong_page("GET", {**HEADERS, b"origin": b"http://task-8-8888.localhost:8081"}) is not None, (
        "a WebSocket"
    )


def test_programs_see_no_credential_of_dgpu(entry: Entry) -> None:
    headers = [
        (b"host", b"task-7-8888.localhost:8081"),
        (b"cookie", b"dgpu_port_8081=x; _xsrf=1; __Host-dgpu_port=y; dgpu_session_8080=z"),
        (b"authorization", b"Bearer dgpu_abc_secret"),
        (b"x-dgpu-token", b"dgpu_abc_secret"),
        (b"x-forwarded-for", b"6.6.6.6"),
        (b"connection", b"keep-alive, X-Hop"),
        (b"x-hop", b"1"),
        (b"content-length", b"3"),
    ]
    head, is_chunked = request_head(
        "POST", b"/a?b", headers, is_secret=entry.is_secret, scheme="http", address="10.0.0.7"
    )
    assert not is_chunked
    assert head.split(b"\r\n") == [
        b"POST /a?b HTTP/1.1",
        b"host: task-7-8888.localhost:8081",
        b"cookie: _xsrf=1",
        b"x-forwarded-for: 10.0.0.7",
        b"x-forwarded-proto: http",
        b"x-forwarded-host: task-7-8888.localhost:8081",
        b"content-length: 3",
        b"",
        b"",
    ]
    for value, hidden in ((b"Bearer secret", True), (b"token of-jupyter", False), (b"Basic YTpi", False)):
        passed, _ = request_head(
            "GET", b"/", [(b"authorization", value)], is_secret=entry.is_secret, scheme="http", address=""
        )
        assert (value in passed) is not hidden


def test_answers_cannot_set_cookies_of_dgpu_or_of_other_hosts() -> None:
    told = answer_headers(
        [
            (b"Set-Cookie", b"a=1; Domain=localhost; Path=/"),
            (b"Set-Cookie", b" dgpu_port_8081=stolen"),
            (b"Set-Cookie", b"domain-of-user=2; DOMAIN = localhost;Secure"),
            (b"Transfer-Encoding", b"chunked"),
            (b"Strict-Transport-Security", b"max-age=1"),
            (b"Content-Type", b"text/html"),
        ]
    )
    assert told == [
        (b"set-cookie", b"a=1; Path=/"),
        (b"set-cookie", b"domain-of-user=2;Secure"),
        (b"content-type", b"text/html"),
    ]
