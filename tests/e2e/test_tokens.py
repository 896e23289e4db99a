"""Two tenants at one scheduler: each with a token, a home of its own, and nothing of the other."""

from __future__ import annotations

import json
import subprocess

import pytest

from .conftest import PATIENCE_SECONDS, Site, files_in

pytestmark = pytest.mark.slow


class Person:
    """Somebody with a configuration directory of their own, who knows the scheduler's address only."""

    def __init__(self, site, name: str) -> None:
        self.site = site
        self.config = site.home / f"config-of-{name}"
        self.env = {
            "XDG_CONFIG_HOME": str(self.config),
            "DGPU_DATA_DIR": str(site.home / "nothing"),
            "DGPU_SERVER": site.record["url"],
        }

    def dgpu(self, *arguments):
        return self.site.dgpu(*arguments, env=self.env)

    def good(self, *arguments) -> str:
        answer = self.dgpu(*arguments)
        assert answer.code == 0, answer
        return answer.out.strip()

    def login(self, token: str) -> None:
        done = subprocess.run(
            self.site.command("login"),
            env={**self.site.env, **self.env},
            input=token + "\n",
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        assert done.returncode == 0, done
        assert token not in done.stdout + done.stderr


def create(site, user: str, tenant: str, *arguments: str) -> str:
    return site.good("token", "create", "laptop", "--user", user, "--tenant", tenant, *arguments).out.strip()


@pytest.fixture(scope="module")
def shared():
    """Of users who trust each other: they have tokens, and their tasks one Unix user."""
    place = Site()
    place.env["DGPU__ISOLATION__USERS"] = "none"
    place.up()
    yield place
    place.close()


def test_a_tenant_works_with_its_token_until_it_is_revoked(shared):
    site = shared
    tokens = {
        name: create(site, name, tenant, "--expires", "30d") for name, tenant in (("ann", "a"), ("bob", "b"))
    }
    ann, bob = Person(site, "ann"), Person(site, "bob")
    ann.login(tokens["ann"])
    bob.login(tokens["bob"])
    assert json.loads(ann.good("whoami", "--json"))["tenants"] == ["a"]

    own = ann.good("submit", "-J", "open", "--", "echo", "hello")
    theirs = bob.good("submit", "-J", "hush", "-G", "0", "--", "sleep", "1000")
    assert ann.good("wait", own)
    assert ann.good("logs", own) == "hello"
    assert site.task(own)["tenant_id"] == "a"
    assert site.task(own)["labels"]["user"] == "ann"

    for refused in (
        ("show", theirs),
        ("logs", theirs),
        ("why", theirs),
        ("cancel", theirs),
        ("hold", theirs),
    ):
        answer = ann.dgpu(*refused)
        assert answer.code == 5, answer
        assert "hush" not in answer.out + answer.err
    assert theirs not in ann.good("ps", "-a", "-o", "name").split()
    assert ann.dgpu("submit", "-A", "b", "--", "true").code == 4
    assert ann.dgpu("nodes", "drain", site.json("nodes")["nodes"][0]["id"]).code == 4
    assert ann.dgpu("token", "create", "x", "--tenant", "a").code == 4
    assert site.task(theirs)["status"] in {"pending", "running"}

    token_id = tokens["ann"].split("_")[1]
    site.good("token", "revoke", token_id)
    refused = ann.dgpu("ps")
    assert (refused.code, "revoked" in refused.err) == (4, True), refused
    assert bob.dgpu("ps").code == 0
    _nothing_holds(site, tokens)
    bob.good("cancel", theirs)


def test_a_restart_keeps_tokens(site):
    site.env["DGPU__ISOLATION__USERS"] = "none"
    site.up()
    token = create(site, "ann", "a")
    site.interrupt()
    site.up()
    ann = Person(site, "ann")
    ann.login(token)
    assert ann.good("whoami", "-o", "name") == "ann"
    _nothing_holds(site, {"ann": token})


def _nothing_holds(site, tokens: dict[str, str]) -> None:
    """No file but the credentials has a secret: not the journal, a snapshot, the history or a log."""
    secrets = [token.split("_", 2)[2].encode() for token in tokens.values()]
    holders = [path for path, content in files_in(site.home) if any(secret in content for secret in secrets)]
    assert {path.name for path in holders} <= {"credentials.json"}, holders
    assert all(path.stat().st_mode & 0o077 == 0 for path in holders)
    keys = [path for path, _ in files_in(site.data_dir) if path.name == "token.key"]
    assert all(path.stat().st_mode & 0o077 == 0 for path in keys)
