"""How the browser of another user gets access: a one-time address, then a cookie, and only from the dashboard's own
pages.
"""

from __future__ import annotations

import pytest

from dgpu.service.access.principal import owner
from dgpu.service.rest.failures import Peer
from dgpu.service.rest.sessions import CODE_SECONDS, COOKIE_SECONDS, MAX_CODES, Sessions
from rest_world import TOKEN, RestWorld

BEARER = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture
def world(tmp_path):
    """No uid is known: every browser belongs to an unknown user."""
    with RestWorld(tmp_path) as running:
        running.access._trusted = {}
        yield running


def new_code(world) -> str:
    reply = world.ask("POST", "/api/v1/session/code", {}, BEARER)
    assert reply.status == 201
    assert reply.body["url_path"] == f"/#code={reply.body['code']}"
    return reply.body["code"]


def sign_in(world) -> dict[str, str]:
    reply = world.ask("POST", "/api/v1/session", {"code": new_code(world)})
    assert reply.status == 204
    told = reply.headers["set-cookie"]
    assert "HttpOnly" in told
    assert "SameSite=Strict" in told
    return {"Cookie": told.partition(";")[0]}


def test_a_code_opens_the_dashboard_once(world) -> None:
    assert world.ask("GET", "/api/v1/session").status == 401
    assert world.ask("GET", "/api/v1/board").status == 401
    assert world.ask("GET", "/").status == 200, "the page itself hides nothing"
    code = new_code(world)
    reply = world.ask("POST", "/api/v1/session", {"code": code})
    cookie = {"Cookie": reply.headers["set-cookie"].partition(";")[0]}
    assert world.ask("GET", "/api/v1/session", headers=cookie).body == {"access": "cookie"}
    assert world.ask("GET", "/api/v1/board", headers=cookie).status == 200
    replayed = world.ask("POST", "/api/v1/session", {"code": code})
    assert (replayed.status, replayed.body["code"]) == (403, "wrong_code")
    assert "set-cookie" not in replayed.headers
    assert code not in str(replayed.body)


def test_an_expired_code_opens_nothing(world) -> None:
    code = new_code(world)
    now = world.access.sessions._clock()
    world.access.sessions._clock = lambda: now + CODE_SECONDS + 1
    assert world.ask("POST", "/api/v1/session", {"code": code}).status == 403


def test_guessing_codes_is_stopped(world) -> None:
    statuses = [world.ask("POST", "/api/v1/session", {"code": f"guess-{n}"}).status for n in range(12)]
    assert statuses[:10] == [403] * 10
    assert statuses[10:] == [429] * 2
    world.access.failures._counts.clear()
    assert world.ask("POST", "/api/v1/session", {"code": new_code(world)}).status == 204


def test_only_the_owner_gives_codes(world) -> None:
    assert world.ask("POST", "/api/v1/session/code", {}).status == 401
    cookie = sign_in(world)
    own = {**cookie, "Origin": world.url}
    reply = world.ask("POST", "/api/v1/session/code", {}, own)
    assert (reply.status, reply.body["code"]) == (403, "not_by_cookie")


def test_a_cookie_writes_only_from_our_own_pages(world) -> None:
    cookie = sign_in(world)
    task = {"command": "true"}
    before = world.digest()
    foreign = world.ask("POST", "/api/v1/tasks", task, {**cookie, "Origin": "http://evil.example"})
    assert (foreign.status, foreign.body["code"]) == (403, "foreign_origin")
    other_port = world.ask("POST", "/api/v1/tasks", task, {**cookie, "Origin": "http://127.0.0.1:3000"})
    assert other_port.status == 403
    unnamed = world.ask("POST", "/api/v1/tasks", task, cookie)
    assert (unnamed.status, unnamed.body["code"]) == (403, "foreign_origin")
    form = {**cookie, "Origin": world.url, "Content-Type": "text/plain"}
    assert world.ask("POST", "/api/v1/tasks", task, form).status == 415
    assert world.ask("DELETE", "/api/v1/tasks/1", headers={**cookie, "Origin": "null"}).status == 403
    assert world.digest() == before
    assert world.ask("POST", "/api/v1/tasks", task, {**cookie, "Origin": world.url}).status == 201


def test_a_page_of_another_origin_cannot_use_a_code(world) -> None:
    code = new_code(world)
    foreign = world.ask("POST", "/api/v1/session", {"code": code}, {"Origin": "http://evil.example"})
    assert foreign.status == 403
    assert world.ask("POST", "/api/v1/session", {"code": code}, {"Origin": world.url}).status == 204


@pytest.mark.parametrize(
    "change", [lambda c: c[:-1] + ("0" if c[-1] != "0" else "1"), lambda c: c.replace("=", "=9", 1)]
)
def test_a_cookie_that_was_touched_is_none(world, change) -> None:
    cookie = sign_in(world)
    assert world.ask("GET", "/api/v1/board", headers={"Cookie": change(cookie["Cookie"])}).status == 401
    for junk in ("dgpu_session_1=x", f"dgpu_session_{world.port}=", f"dgpu_session_{world.port}=1.2.\xff"):
        assert world.ask("GET", "/api/v1/board", headers={"Cookie": junk}).status == 401


def test_signing_out_takes_the_cookie_back(world) -> None:
    reply = world.ask("DELETE", "/api/v1/session", headers={**sign_in(world), "Origin": world.url})
    assert reply.status == 204
    assert "Max-Age=0" in reply.headers["set-cookie"]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"code": 7},
        {"code": ""},
        {"code": "x" * 65},
        {"kode": "x"},
        {"code": "x", "token": "x"},
        {"token": 7},
        {"token": " "},
        {"token": "x" * 129},
        [],
        "x",
    ],
)
def test_a_body_that_makes_no_sense_is_told_so(world, body) -> None:
    reply = world.ask("POST", "/api/v1/session", body)
    assert reply.status == 400
    assert "code" in reply.body["detail"] or reply.body["errors"][0]["path"] == "token"


def test_wrong_methods_are_told_what_is_allowed(world) -> None:
    assert world.ask("PUT", "/api/v1/session", {}, BEARER).headers["allow"] == "GET, POST, DELETE"
    assert world.ask("GET", "/api/v1/session/code", headers=BEARER).headers["allow"] == "POST"


OWNER = owner("olga", "uid")


def test_sessions_hold_over_a_restart_and_end_with_the_token() -> None:
    now = [1_000.0]
    sessions = Sessions("token", lambda: now[0], lambda: now[0])
    cookie = sessions.open(sessions.redeem(sessions.new_code(OWNER)))
    again = Sessions("token", lambda: 0.0, lambda: now[0])
    assert not again.is_over(again.find(cookie))
    assert Sessions("another", lambda: 0.0, lambda: now[0]).find(cookie) is None
    now[0] += COOKIE_SECONDS + 1
    assert sessions.is_over(sessions.find(cookie))


def test_unused_codes_are_few() -> None:
    sessions = Sessions("token", lambda: 1.0)
    codes = [sessions.new_code(OWNER) for _ in range(MAX_CODES + 5)]
    assert [sessions.redeem(code) is None for code in codes[:6]] == [True] * 5 + [False]
    assert sessions.redeem(codes[-1]) is not None


def test_the_own_user_needs_none_of_this(tmp_path) -> None:
    with RestWorld(tmp_path) as world:
        assert world.ask("GET", "/api/v1/session").body == {"access": "user"}
        assert world.access.admit({}, Peer(uid=None)) is not None
