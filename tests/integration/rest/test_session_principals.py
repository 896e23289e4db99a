"""A browser's session has the rights of its principal, and no longer life than it."""

from __future__ import annotations

from typing import Any

import pytest

from dgpu.service.access.ended_sessions import MAX_ENDED, EndedSessions
from dgpu.service.rest.sessions import CODE_SECONDS
from rest_world import TOKEN, RestWorld

BEARER = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture
def world(tmp_path):
    """No uid is known: every browser belongs to an unknown user."""
    with RestWorld(tmp_path) as running:
        running.access._trusted = {}
        yield running


def token_of(world, **fields: Any) -> dict[str, Any]:
    asked = {"name": "t", "user": "ann", "tenants": ["vision"], **fields}
    reply = world.ask("POST", "/api/v1/tokens", asked, BEARER)
    assert reply.status == 201, reply
    return dict(reply.body)


def sign_in(world, body: dict[str, str], headers: dict[str, str] | None = None) -> dict[str, str]:
    reply = world.ask("POST", "/api/v1/session", body, {"Origin": world.url, **(headers or {})})
    assert reply.status == 204, reply
    return {"Cookie": reply.headers["set-cookie"].partition(";")[0], "Origin": world.url}


def whoami(world, headers: dict[str, str]) -> dict[str, Any]:
    reply = world.ask("GET", "/api/v1/whoami", headers=headers)
    assert reply.status == 200, reply
    return dict(reply.body)


def test_a_token_opens_a_session_with_its_rights(world) -> None:
    token = token_of(world)
    browser = sign_in(world, {"token": token["token"]})
    told = whoami(world, browser)
    assert (told["user"], told["role"], told["tenants"], told["source"], told["token_id"]) == (
        "ann",
        "user",
        ["vision"],
        "session",
        token["id"],
    )
    assert "task.submit" in told["actions"]
    assert "token.change" not in told["actions"]
    submitted = world.ask("POST", "/api/v1/tasks", {"command": "true"}, browser)
    assert submitted.status == 201
    task = world.ask("GET", f"/api/v1/tasks/{submitted.body['task_id']}", headers=browser).body
    assert (task["tenant_id"], task["labels"]["user"]) == ("vision", "ann")
    assert world.ask("GET", "/api/v1/tokens", headers=browser).status == 403


def test_dgpu_dashboard_gives_the_principal_that_asked(world) -> None:
    """Not an administrator, as it was when only administrators could ask."""
    bearer = {"Authorization": f"Bearer {token_of(world)['token']}"}
    code = world.ask("POST", "/api/v1/session/code", {}, bearer).body["code"]
    assert whoami(world, sign_in(world, {"code": code}))["user"] == "ann"
    code = world.ask("POST", "/api/v1/session/code", {}, BEARER).body["code"]
    assert whoami(world, sign_in(world, {"code": code}))["role"] == "admin"


@pytest.mark.parametrize("way", ["token", "code"])
def test_a_revoked_token_ends_its_sessions_with_the_next_request(world, way) -> None:
    token = token_of(world)
    body = {"token": token["token"]}
    if way == "code":
        bearer = {"Authorization": f"Bearer {token['token']}"}
        body = {"code": world.ask("POST", "/api/v1/session/code", {}, bearer).body["code"]}
    browser = sign_in(world, body)
    other = sign_in(world, {"token": token_of(world, user="bob")["token"]})
    world.ask("DELETE", f"/api/v1/tokens/{token['id']}", headers=BEARER)
    refused = world.ask("GET", "/api/v1/tasks", headers=browser)
    assert (refused.status, refused.body["code"]) == (401, "session_ended")
    assert "revoked" in refused.body["detail"]
    assert "Max-Age=0" in refused.headers["set-cookie"], "the browser forgets it"
    assert whoami(world, other)["user"] == "bob"


def test_a_code_of_a_token_revoked_meanwhile_opens_nothing(world) -> None:
    token = token_of(world)
    bearer = {"Authorization": f"Bearer {token['token']}"}
    code = world.ask("POST", "/api/v1/session/code", {}, bearer).body["code"]
    world.ask("DELETE", f"/api/v1/tokens/{token['id']}", headers=BEARER)
    browser = sign_in(world, {"code": code})
    assert world.ask("GET", "/api/v1/tasks", headers=browser).status == 401


def test_an_expired_token_ends_its_session(world) -> None:
    browser = sign_in(world, {"token": token_of(world, expires_in_seconds=60)["token"]})
    assert whoami(world, browser)["user"] == "ann"
    now = world.access.tokens.now_wall_ms()
    world.access.tokens._wall_ms = lambda: now + 61_000
    refused = world.ask("GET", "/api/v1/whoami", headers=browser)
    assert (refused.status, refused.body["code"]) == (401, "session_ended")
    assert "expired" in refused.body["detail"]


def test_a_copy_of_the_cookie_is_worth_nothing_after_signing_out(world, tmp_path) -> None:
    browser = sign_in(world, {"token": token_of(world)["token"]})
    world.access.sessions.ended._path = tmp_path / "ended"
    assert world.ask("DELETE", "/api/v1/session", headers=browser).status == 204
    refused = world.ask("GET", "/api/v1/whoami", headers=browser)
    assert (refused.status, refused.body["code"]) == (401, "session_ended")
    assert (tmp_path / "ended").stat().st_mode & 0o777 == 0o600
    session = world.access.sessions.find(browser["Cookie"].partition("=")[2])
    assert session.id in EndedSessions(tmp_path / "ended"), "also after a restart"


def test_signing_in_again_gives_a_new_session_and_ends_the_old_one(world) -> None:
    """A session that somebody planted in a browser never gets the rights of the one who signs in there."""
    planted = sign_in(world, {"token": token_of(world, user="eve")["token"]})
    own = sign_in(world, {"token": token_of(world)["token"]}, planted)
    assert own["Cookie"] != planted["Cookie"]
    assert whoami(world, own)["user"] == "ann"
    assert world.ask("GET", "/api/v1/whoami", headers=planted).status == 401


def test_a_session_goes_before_a_trusted_user(tmp_path) -> None:
    """The owner can look at the dashboard as somebody else; after signing out it is the owner again."""
    with RestWorld(tmp_path) as world:
        browser = sign_in(world, {"token": token_of(world)["token"]})
        assert whoami(world, browser)["user"] == "ann"
        world.ask("DELETE", "/api/v1/session", headers=browser)
        assert world.ask("GET", "/api/v1/whoami", headers=browser).status == 401
        assert whoami(world, {})["source"] == "uid"


def test_wrong_tokens_at_the_login_are_counted(world) -> None:
    token = token_of(world)["token"]
    asked = [{"token": f"{token[:20]}{n}"} for n in range(6)] + [{"token": f"guess-{n}"} for n in range(6)]
    statuses = [world.ask("POST", "/api/v1/session", body).status for body in asked]
    assert statuses == [403] * 10 + [429] * 2
    assert world.ask("POST", "/api/v1/session", {"token": token}).status == 429


def test_a_session_opens_no_other_session_and_no_page_may_sign_a_browser_in(world) -> None:
    token = token_of(world, role="admin", tenants=None)["token"]
    browser = sign_in(world, {"token": token})
    reply = world.ask("POST", "/api/v1/session/code", {}, browser)
    assert (reply.status, reply.body["code"]) == (403, "not_by_cookie")
    foreign = world.ask("POST", "/api/v1/session", {"token": token}, {"Origin": "http://evil.example"})
    assert foreign.status == 403


def test_a_session_of_an_open_scheduler_proves_nothing_when_it_is_closed(tmp_path) -> None:
    """Else every visitor of the open time would be an administrator for another week."""
    with RestWorld(tmp_path, access_mode="none") as world:
        code = world.ask("POST", "/api/v1/session/code", {}).body["code"]
        browser = sign_in(world, {"code": code})
        world.access.mode = "loopback"
        world.access._trusted = {}
        assert world.ask("GET", "/api/v1/whoami", headers=browser).status == 401


def test_a_code_may_live_longer_than_its_token_but_opens_nothing_then(world) -> None:
    token = token_of(world, expires_in_seconds=60)
    bearer = {"Authorization": f"Bearer {token['token']}"}
    code = world.ask("POST", "/api/v1/session/code", {}, bearer).body["code"]
    now = world.access.tokens.now_wall_ms()
    world.access.tokens._wall_ms = lambda: now + 61_000
    assert CODE_SECONDS > 61
    browser = sign_in(world, {"code": code})
    assert world.ask("GET", "/api/v1/whoami", headers=browser).status == 401


def test_ended_sessions_are_bounded_and_forgotten_when_they_would_be_over_anyway() -> None:
    ended = EndedSessions()
    for number in range(MAX_ENDED + 5):
        ended._until_s[f"s{number}"] = 1_000 + number
    ended.add("new", 5_000_000, now_s=500)
    assert "s0" not in ended
    assert "new" in ended
    ended.add("newer", 5_000_000, now_s=4_000_000)
    assert ended._until_s == {"new": 5_000_000, "newer": 5_000_000}


def test_a_damaged_file_of_ended_sessions_stops_nothing(tmp_path) -> None:
    path = tmp_path / "ended"
    path.write_bytes(b'{"s1": ')
    assert "s1" not in EndedSessions(path)
