"""`dgpu login --oidc` as a process, against a real scheduler and a real provider. The test is the browser."""

from __future__ import annotations

import json
import os
import pty
import re
import stat
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import pytest

from identity_provider import CLIENT, IdentityProvider

ADDRESS = re.compile(r"^http://127\.0\.0\.1:\d+/realms/lab/authorize\?\S+$")
CLI = {"cli_client_id": CLIENT}


class Login:
    def __init__(self, url: str, home: Path, *options: str, terminal: int | None = None, **more: str) -> None:
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("DGPU") and name not in {"DISPLAY", "WAYLAND_DISPLAY"}
        }
        self.env = {
            **kept,
            "HOME": str(home),
            "XDG_CONFIG_HOME": str(home / "config"),
            "NO_COLOR": "1",
            **more,
        }
        self.url = url
        self.process = subprocess.Popen(
            [sys.executable, "-m", "dgpu", "--server", url, "login", "--oidc", *options],
            env=self.env,
            stdin=subprocess.DEVNULL if terminal is None else terminal,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def address(self) -> str:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if ADDRESS.match(line.strip()):
                return line.strip()
        pytest.fail(f"no address, exit code {self.process.wait(60)}")

    def end(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=60)
        return self.process.returncode, out, err

    def whoami(self) -> dict:
        done = subprocess.run(
            [sys.executable, "-m", "dgpu", "--server", self.url, "whoami", "--json"],
            env=self.env,
            capture_output=True,
            check=True,
        )
        return dict(json.loads(done.stdout))


@pytest.fixture
def site(oidc_world, provider, tmp_path):
    oidc_world.access._trusted = {}  # the uid of this test must not be what lets it in
    started: list[Login] = []

    def login(*options, **more) -> Login:
        started.append(Login(oidc_world.url, tmp_path, *options, **more))
        return started[-1]

    yield login
    for each in started:
        each.process.kill()
        each.process.communicate()


def visit(address: str) -> tuple[int, str]:
    """As a browser: follows redirects."""
    try:
        with urllib.request.urlopen(address, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.mark.parametrize("oidc_settings", [CLI])
def test_a_browser_signs_the_command_line_in(site, provider: IdentityProvider, tmp_path) -> None:
    login = site()
    address = login.address()
    port = urllib.parse.parse_qs(urllib.parse.urlsplit(address).query)["redirect_uri"][0]
    assert visit(f"{port}?code=evil&state=wrong")[0] == 400  # of another program on this machine
    status, page = visit(address)
    assert (status, "close this page" in page) == (200, True)
    code, out, _ = login.end()
    assert (code, "as ann: user, tenants: vision" in out) == (0, True), out
    told = login.whoami()
    assert (told["user"], told["source"]) == ("ann", "oidc")
    stored = tmp_path / "config" / "dgpu" / "credentials.json"
    assert stat.S_IMODE(stored.stat().st_mode) == 0o600


@pytest.mark.parametrize("oidc_settings", [CLI])
@pytest.mark.parametrize("options", [(), ("--no-browser",)])
def test_a_browser_opens_unless_it_is_not_wanted(
    site, provider: IdentityProvider, tmp_path, options: tuple[str, ...]
) -> None:
    browser, opened = tmp_path / "browser", tmp_path / "opened"
    browser.write_text(f'#!/bin/sh\nprintf %s "$1" > {opened}\n')
    browser.chmod(0o755)
    login = site(*options, DISPLAY=":1", BROWSER=f"{browser} %s")
    address = login.address()  # printed after the browser has ended
    assert opened.exists() is not bool(options)
    if not options:
        assert opened.read_text() == address
    visit(address)
    assert login.end()[0] == 0


@pytest.mark.parametrize("oidc_settings", [CLI])
def test_options_of_the_browser_need_it(site, provider: IdentityProvider) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "dgpu", "--server", site().url, "login", "--no-browser"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, "--no-browser needs --oidc." in done.stderr) == (2, True), done


@pytest.mark.parametrize("oidc_settings", [CLI])
def test_a_provider_that_needs_consent_for_a_refresh_token(
    site, provider: IdentityProvider, tmp_path
) -> None:
    """It is not asked for unless the user wants it: at some providers only administrators may consent."""
    stored = tmp_path / "config" / "dgpu" / "credentials.json"
    provider.needs_consent = True
    login = site()
    visit(login.address())
    code, _, err = login.end()
    assert (code, "dgpu login --oidc --consent" in err) == (0, True), err
    assert "sign_ins" not in json.loads(stored.read_text())
    login = site("--consent")
    visit(login.address())
    code, _, err = login.end()
    assert (code, "refresh token" in err) == (0, False), err
    assert "sign_ins" in json.loads(stored.read_text())


@pytest.mark.parametrize("oidc_settings", [CLI])
def test_an_address_of_another_machine_is_pasted(site, provider: IdentityProvider) -> None:
    """There the browser ends at an address that it cannot reach."""
    ours, theirs = pty.openpty()
    try:
        login = site(terminal=theirs)
        back = provider.authorize(login.address())
        to = back.pop("to")
        os.write(ours, b"http://127.0.0.1:1/?code=x&state=y\n")
        os.write(ours, f"{to}?{urllib.parse.urlencode(back)}\n".encode())
        code, out, err = login.end()
    finally:
        os.close(ours)
        os.close(theirs)
    assert (code, "as ann" in out) == (0, True), (out, err)
    assert "does not belong to this sign-in" in err


@pytest.mark.parametrize("oidc_settings", [CLI])
def test_refusals_are_told_and_store_nothing(site, provider: IdentityProvider, tmp_path) -> None:
    login = site()
    back = provider.authorize(login.address())
    refusal = {"error": "access_denied", "error_description": "Not\x1b[2J today", "state": back["state"]}
    visit(f"{back['to']}?{urllib.parse.urlencode(refusal)}")
    code, _, err = login.end()
    assert code
    assert "The identity provider refused: Not?[2J today" in err
    provider.changes = {"nonce": "another"}
    login = site()
    visit(login.address())
    code, _, err = login.end()
    assert (code, "without an id_token of this sign-in" in err) == (1, True), err
    provider.changes = {"groups": []}
    login = site()
    visit(login.address())
    code, _, err = login.end()
    assert code
    assert "names a tenant (auth.oidc.tenants)" in err
    assert not (tmp_path / "config" / "dgpu" / "credentials.json").exists()


def test_a_scheduler_without_a_client_for_it_says_which_key_is_missing(site) -> None:
    code, _, err = site().end()
    assert code
    assert "auth.oidc.cli_client_id is not set" in err
