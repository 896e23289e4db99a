"""The sign-in of a browser with an account of an identity provider. The provider is a real server."""

from __future__ import annotations

import time
from typing import Any

import pytest

from identity_provider import CLIENT, SECRET, new_key, oidc_options
from rest_world import TOKEN, Reply, RestWorld

OWNER = {"Authorization": f"Bearer {TOKEN}"}


class Browser:
    """Keeps cookies, as a browser does."""

    def __init__(self, world: RestWorld) -> None:
        self.world = world
        self.cookies: dict[str, str] = {}

    def ask(self, method: str, path: str, body: Any = None) -> Reply:
        cookie = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        headers = {"Origin": self.world.url} | ({"Cookie": cookie} if cookie else {})
        reply = self.world.ask(method, path, body, headers)
        for line in reply.cookies:
            assert "HttpOnly" in line
            assert "SameSite=Strict" in line
            name, _, value = line.partition(";")[0].partition("=")
            self.cookies[name] = value
            if "Max-Age=0" in line:
                del self.cookies[name]
        return reply

    def begin(self) -> str:
        reply = self.ask("POST", "/api/v1/session/oidc", {})
        assert reply.status == 200, reply
        return str(reply.body["url"])

    def finish(self, back: dict[str, str]) -> Reply:
        return self.ask("POST", "/api/v1/session", {"oidc": {"code": back["code"], "state": back["state"]}})


@pytest.fixture
def browser(oidc_world):
    return Browser(oidc_world)


@pytest.mark.parametrize("oidc_settings", [{}, {"client_secret": SECRET}])
def test_a_browser_signs_in(oidc_world, provider, browser, oidc_settings) -> None:
    provider.secret = oidc_settings.get("client_secret", "")
    assert oidc_world.ask("GET", "/api/v1/session/methods").body["oidc"] == "127.0.0.1"
    back = provider.authorize(browser.begin())
    assert back["to"] == f"{oidc_world.url}/login"
    assert browser.finish(back).status == 204
    told = browser.ask("GET", "/api/v1/whoami").body
    assert (told["user"], told["role"], told["tenants"], told["source"]) == (
        "ann",
        "user",
        ["vision"],
        "session",
    )
    assert list(browser.cookies) == [f"dgpu_session_{oidc_world.port}"], "the cookie of the attempt is gone"
    assert browser.ask("DELETE", "/api/v1/session").status == 204
    assert browser.ask("GET", "/api/v1/whoami").status == 401


def test_a_sign_in_works_once_and_in_its_own_browser(oidc_world, provider, browser) -> None:
    back = provider.authorize(browser.begin())
    victim = Browser(oidc_world)
    assert victim.finish(back).body["code"] == "wrong_sign_in", "a browser that did not begin"
    victim.begin()
    assert victim.finish(back).body["code"] == "wrong_sign_in", "or began another one"
    kept = dict(browser.cookies)
    assert browser.finish(back).status == 204
    asked = provider.count("/token")
    browser.cookies = kept
    replayed = browser.finish(back)
    assert (replayed.status, replayed.body["code"]) == (403, "wrong_sign_in")
    assert provider.count("/token") == asked, "not even asked"


def test_a_code_of_another_attempt_is_refused_by_its_challenge(oidc_world, provider, browser) -> None:
    stolen = provider.authorize(browser.begin())
    thief = Browser(oidc_world)
    own = provider.authorize(thief.begin())
    refused = thief.finish({"code": stolen["code"], "state": own["state"]})
    assert (refused.status, refused.body["code"]) == (403, "wrong_sign_in")
    assert thief.ask("GET", "/api/v1/whoami").status == 401


@pytest.mark.parametrize(
    "changes",
    [
        {"nonce": "another"},
        {"nonce": None},
        {"aud": "another"},
        {"aud": [CLIENT, "another"]},
        {"azp": "another"},
        {"iss": "https://evil.example"},
        {"exp": 1},
        {"groups": []},
    ],
)
def test_an_identity_that_does_not_fit_opens_no_session(oidc_world, provider, browser, changes) -> None:
    back = provider.authorize(browser.begin())
    provider.changes = changes
    refused = browser.finish(back)
    assert refused.status in {401, 403}
    assert f"dgpu_session_{oidc_world.port}" not in browser.cookies


def test_a_token_of_a_browser_that_is_signed_by_a_stranger_is_refused(oidc_world, provider, browser) -> None:
    back = provider.authorize(browser.begin())
    provider.key = new_key("k1")
    assert browser.finish(back).body["code"] == "wrong_token"


def test_a_slow_sign_in_begins_again(oidc_world, provider, browser) -> None:
    back = provider.authorize(browser.begin())
    now = time.time()
    oidc_world.oidc._wall_s = lambda: now + 601
    assert "ten minutes" in browser.finish(back).body["detail"]


def test_a_provider_that_goes_away_meanwhile_is_503(oidc_world, provider, browser) -> None:
    back = provider.authorize(browser.begin())
    provider.is_broken = True
    refused = browser.finish(back)
    assert (refused.status, refused.body["code"]) == (503, "oidc_away")


def test_an_address_that_the_provider_does_not_know_is_told(oidc_world, browser) -> None:
    reply = oidc_world.ask("POST", "/api/v1/session/oidc", {}, {"Host": f"localhost:{oidc_world.port}"})
    assert (reply.status, reply.body["code"]) == (409, "other_address")
    assert f"Open {oidc_world.url}/" in reply.body["detail"]


def test_failed_sign_ins_are_counted(oidc_world, provider, browser) -> None:
    back = {"code": "guess", "state": "guess"}
    assert [browser.finish(back).status for _ in range(11)] == [403] * 10 + [429]


@pytest.mark.parametrize(
    "given", [7, {}, {"code": "x"}, {"code": "x", "state": 7}, {"code": "x" * 5_000, "state": "y"}]
)
def test_a_body_that_makes_no_sense_is_told_so(oidc_world, given) -> None:
    reply = oidc_world.ask("POST", "/api/v1/session", {"oidc": given})
    assert (reply.status, reply.body["errors"][0]["path"]) == (400, "oidc")


def test_a_session_ends_with_its_issuer_and_its_time(oidc_world, provider, browser) -> None:
    browser.finish(provider.authorize(browser.begin()))
    sessions = oidc_world.access.sessions
    session = sessions.find(browser.cookies[f"dgpu_session_{oidc_world.port}"])
    assert session.until_s == pytest.approx(time.time() + 8 * 3_600, abs=60)
    oidc_world.oidc.options = oidc_options(provider, oidc_world.url, issuer="https://another.example")
    assert browser.ask("GET", "/api/v1/whoami").body["code"] == "session_ended"


def test_dgpu_dashboard_with_a_signed_token_gives_a_session_that_ends_with_it(oidc_world, provider) -> None:
    bearer = {"Authorization": f"Bearer {provider.token()}"}
    code = oidc_world.ask("POST", "/api/v1/session/code", {}, bearer).body["code"]
    browser = Browser(oidc_world)
    assert browser.ask("POST", "/api/v1/session", {"code": code}).status == 204
    assert browser.ask("GET", "/api/v1/whoami").body["user"] == "ann"
    session = oidc_world.access.sessions.find(browser.cookies[f"dgpu_session_{oidc_world.port}"])
    assert session.until_s <= time.time() + 361


def test_without_a_provider_the_calls_say_so(tmp_path) -> None:
    with RestWorld(tmp_path) as world:
        assert world.ask("GET", "/api/v1/session/methods").body == {"oidc": None, "cli": None}
        assert world.ask("POST", "/api/v1/session/oidc", {}).body["code"] == "no_oidc"
        world.access._trusted = {}
        assert (
            world.ask("GET", "/api/v1/whoami", headers={"Authorization": "Bearer eyJh.e30.x"}).status == 403
        )


def test_no_secret_is_logged(oidc_world, provider, browser, capfd) -> None:
    token = provider.token()
    oidc_world.ask("GET", "/api/v1/whoami", headers={"Authorization": f"Bearer {token}"})
    back = provider.authorize(browser.begin())
    browser.finish(back)
    seen = "".join(capfd.readouterr())
    for secret in (token, back["code"], back["state"], *browser.cookies.values()):
        assert secret not in seen


def test_sign_ins_are_in_the_audit_log_accepted_and_refused(oidc_world, provider, browser) -> None:
    """Asking for the way to the provider is no sign-in: any stranger may do it, and it leaves no entry."""
    assert browser.finish(provider.authorize(browser.begin())).status == 204
    stranger = Browser(oidc_world)
    back = provider.authorize(stranger.begin())
    provider.changes = {"groups": []}
    assert stranger.finish(back).body["code"] == "no_account"
    assert stranger.finish(back).body["code"] == "wrong_sign_in"
    provider.changes, provider.is_broken = {}, True
    back = provider.authorize(stranger.begin())
    assert stranger.finish(back).body["code"] == "oidc_away"
    found = oidc_world.ask("GET", "/api/v1/audit?action=session", headers=OWNER).body["entries"]
    told = [
        (each["call"], each["result"], each["code"], each["user"], each["source"]) for each in found[::-1]
    ]
    call = "POST /api/v1/session"
    assert told == [
        (call, "done", None, "ann", "oidc"),
        (call, "refused", "no_account", None, None),
        (call, "refused", "wrong_sign_in", None, None),
        (call, "failed", "oidc_away", None, None),
    ]
    assert found[-1]["role"] == "user"
    assert all(each["origin"] for each in found)
