"""A sign-in of `dgpu login --oidc` that is renewed, as processes, against a real scheduler and a real provider."""

from __future__ import annotations

import asyncio
import json
import stat
import subprocess
import sys
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dgpu.client import renewal
from dgpu.client.asynchronous import AsyncClient
from dgpu.client.sync import Client
from identity_provider import CLIENT, IdentityProvider
from integration.rest.test_cli_sign_in import Login

pytestmark = pytest.mark.parametrize("oidc_settings", [{"cli_client_id": CLIENT}])


class SignedIn:
    def __init__(self, login: Login, home: Path, printed: str) -> None:
        self.url, self.env, self.printed = login.url, login.env, printed
        self.file = home / "config" / "dgpu" / "credentials.json"

    @property
    def stored(self) -> dict:
        return dict(json.loads(self.file.read_text()))

    def run(self, *words: str) -> tuple[int, str, str]:
        done = subprocess.run(
            [sys.executable, "-m", "dgpu", "--server", self.url, *words],
            env=self.env,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        self.printed += done.stdout + done.stderr
        return done.returncode, done.stdout, done.stderr

    def age(self) -> None:
        """The token ends soon, by this machine's clock."""
        stored = self.stored
        stored["sign_ins"][self.url]["until_s"] = 1.0
        self.file.write_text(json.dumps(stored))


@pytest.fixture
def signed_in(oidc_world, provider, tmp_path):
    oidc_world.access._trusted = {}  # the uid of this test must not be what lets it in
    login = Login(oidc_world.url, tmp_path)
    urllib.request.urlopen(login.address(), timeout=60).close()
    code, out, err = login.end()
    assert code == 0, err
    return SignedIn(login, tmp_path, out + err)


def test_a_token_that_ends_is_renewed_with_the_next_command(signed_in, provider: IdentityProvider) -> None:
    before = signed_in.stored
    assert stat.S_IMODE(signed_in.file.stat().st_mode) == 0o600
    provider.changes = {"groups": ["vision", "speech"], "jti": "second"}
    code, out, _ = signed_in.run("whoami", "--json")
    assert (code, json.loads(out)["tenants"]) == (0, ["vision"])  # not renewed before its time
    signed_in.age()
    code, out, err = signed_in.run("whoami", "--json")
    assert (code, json.loads(out)["tenants"]) == (0, ["vision", "speech"]), err
    after = signed_in.stored
    assert after["tokens"] != before["tokens"]
    renewed = after["sign_ins"][signed_in.url]
    assert renewed["until_s"] > 1.0
    # The provider replaced it: the former one would end the sign-in.
    assert renewed["refresh_token"] in provider.refreshes
    assert renewed["refresh_token"] != before["sign_ins"][signed_in.url]["refresh_token"]
    assert stat.S_IMODE(signed_in.file.stat().st_mode) == 0o600
    for secret in (*after["tokens"].values(), renewed["refresh_token"]):
        assert secret not in signed_in.printed


def test_a_refresh_token_that_is_not_replaced_stays(signed_in, provider: IdentityProvider) -> None:
    provider.rotates = False
    for _ in range(2):
        signed_in.age()
        assert signed_in.run("whoami")[0] == 0
    assert provider.refreshes == {signed_in.stored["sign_ins"][signed_in.url]["refresh_token"]}


def test_clients_at_the_same_time_use_a_refresh_token_once(
    signed_in, provider: IdentityProvider, monkeypatch
) -> None:
    """A second use would end the sign-in."""
    monkeypatch.setenv("XDG_CONFIG_HOME", signed_in.env["XDG_CONFIG_HOME"])
    signed_in.age()
    before = provider.count("/token")
    clients = [Client(signed_in.url) for _ in range(4)]
    provider.hold = threading.Event()
    with ThreadPoolExecutor() as threads:
        asking = [threads.submit(lambda each=each: each.whoami().user) for each in clients]
        while provider.count("/token") == before:
            time.sleep(0.01)
        time.sleep(0.3)  # without a lock, the others would arrive now
        provider.hold.set()
        assert [each.result() for each in asking] == ["ann"] * 4
    assert provider.count("/token") == before + 1


def test_a_refused_renewal_says_how_to_go_on(signed_in, provider: IdentityProvider) -> None:
    provider.refreshes.clear()  # as an administrator who ends the session
    signed_in.age()
    code, _, err = signed_in.run("whoami")
    assert (code, "invalid_grant. Sign in again: dgpu login --oidc" in err) == (4, True), err
    asked = provider.count("/token")
    signed_in.run("whoami")
    assert provider.count("/token") == asked  # not tried again with every command


def test_a_renewal_of_another_account_is_not_used(signed_in, provider: IdentityProvider) -> None:
    provider.changes = {"sub": "u-2", "preferred_username": "eve"}
    signed_in.age()
    code, out, err = signed_in.run("whoami")
    assert (code, "of the same account" in err, "eve" in out) == (4, True, False), err


def test_while_the_provider_is_away_a_valid_token_is_used(
    signed_in, provider: IdentityProvider, monkeypatch
) -> None:
    provider.is_broken = True
    monkeypatch.setattr(renewal, "_MARGIN_S", 10_000.0)
    monkeypatch.setenv("XDG_CONFIG_HOME", signed_in.env["XDG_CONFIG_HOME"])
    asked = provider.count("/token")
    with Client(signed_in.url) as client:
        assert client.whoami().user == "ann"
    assert provider.count("/token") == asked + 1
    signed_in.age()
    code, _, err = signed_in.run("whoami")
    assert (code, "answered 500" in err) == (3, True), err
    provider.is_broken = False
    assert signed_in.run("whoami")[0] == 0


def test_a_program_that_runs_for_long_renews_too(signed_in, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", signed_in.env["XDG_CONFIG_HOME"])

    async def ask_twice() -> list[str]:
        async with AsyncClient(signed_in.url) as client:
            client._schedulers.servers = tuple(
                server._replace(until_s=1.0, token="") for server in client._schedulers.servers
            )
            client._schedulers.current = client._schedulers.servers[0]
            signed_in.age()
            return [(await client.whoami()).user for _ in range(2)]

    assert asyncio.run(ask_twice()) == ["ann", "ann"]


def test_a_logout_forgets_the_refresh_token(signed_in) -> None:
    assert signed_in.run("logout")[0] == 0
    assert signed_in.stored == {"tokens": {}}


def test_a_login_with_a_token_replaces_the_sign_in(signed_in, provider: IdentityProvider) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "dgpu", "--server", signed_in.url, "login"],
        env=signed_in.env,
        input=provider.token() + "\n",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "sign_ins" not in signed_in.stored
