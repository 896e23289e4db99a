"""token, login, logout and whoami at the command line."""

from __future__ import annotations

import io
import json
import stat
import sys

import pytest

from .conftest import problem

SECRET = "dgpu_k2m4p6r7t2v5_secret"
ANN = {
    "user": "ann",
    "role": "user",
    "tenants": ["lab"],
    "source": "token",
    "token_id": "k2m4p6r7t2v5",
    "scopes": [],
    "actions": [],
}
MADE = {
    "token": SECRET,
    "id": "k2m4p6r7t2v5",
    "name": "laptop",
    "user": "ann",
    "role": "user",
    "tenants": ["lab"],
    "expires_at": "2026-12-01T00:00:00.000Z",
    "scopes": [],
}
LISTED = {
    **{name: value for name, value in MADE.items() if name != "token"},
    "created_by": "root",
    "created_at": "2026-11-01T00:00:00.000Z",
    "revoked": False,
    "last_used_at": None,
}


@pytest.fixture
def credentials(tmp_path):
    return tmp_path / "config" / "dgpu" / "credentials.json"


def type_in(monkeypatch, text: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))


def test_create_prints_the_token_alone_and_the_rest_as_a_note(dgpu, server) -> None:
    server.answers["POST", "/api/v1/tokens"] = (201, MADE)
    arguments = ("laptop", "--user", "ann", "--role", "user", "--tenant", "lab", "--expires", "30d")
    code, out, err = dgpu("--server", server.url, "token", "create", *arguments)
    assert (code, out) == (0, f"{SECRET}\n")
    assert "shown only now" in err
    assert server.sent("POST", "/api/v1/tokens") == [
        {"name": "laptop", "user": "ann", "role": "user", "tenants": ["lab"], "expires_in_seconds": 2_592_000}
    ]


def test_scopes_are_sent_and_told(dgpu, server) -> None:
    server.answers["POST", "/api/v1/tokens"] = (201, {**MADE, "scopes": ["task.submit", "task.read"]})
    code, _, err = dgpu(
        "--server", server.url, "token", "create", "ci", "--scope", "task.submit", "--scope", "task.read"
    )
    assert code == 0
    assert "only task.submit, task.read" in err
    assert server.sent("POST", "/api/v1/tokens") == [{"name": "ci", "scopes": ["task.submit", "task.read"]}]


def test_never_and_no_expiry_are_different(dgpu, server) -> None:
    server.answers["POST", "/api/v1/tokens"] = (201, MADE)
    dgpu("--server", server.url, "token", "create", "x", "--expires", "never")
    dgpu("--server", server.url, "token", "create", "x")
    assert server.sent("POST", "/api/v1/tokens") == [{"name": "x", "expires_in_seconds": 0}, {"name": "x"}]


def test_an_unknown_role_is_a_usage_error(dgpu, server) -> None:
    code, _, err = dgpu("--server", server.url, "token", "create", "x", "--role", "root")
    assert (code, server.requests) == (2, [])
    assert "'root' is not one of admin, operator, tenant-admin, user, viewer" in err


def test_list_and_revoke(dgpu, server) -> None:
    server.answers["GET", "/api/v1/tokens"] = (200, {"total": 1, "tokens": [LISTED]})
    server.answers["DELETE", "/api/v1/tokens/k2m4p6r7t2v5"] = (200, {"id": "k2m4p6r7t2v5", "removed": True})
    code, out, _ = dgpu("--server", server.url, "token", "list")
    assert code == 0
    assert "k2m4p6r7t2v5" in out
    assert "ann" in out
    assert "valid" in out
    code, out, _ = dgpu("--server", server.url, "token", "revoke", "k2m4p6r7t2v5")
    assert (code, out) == (0, "k2m4p6r7t2v5\n")


def test_login_stores_a_token_that_the_scheduler_knows(dgpu, server, monkeypatch, credentials) -> None:
    server.answers["GET", "/api/v1/whoami"] = (200, ANN)
    type_in(monkeypatch, f"{SECRET}\n")
    code, out, err = dgpu("login", "--server", server.url)
    assert code == 0
    assert out == f"Logged in to {server.url} as ann: user, tenants: lab\n"
    assert SECRET not in out + err
    assert json.loads(credentials.read_text()) == {"tokens": {server.url: SECRET}}
    assert stat.S_IMODE(credentials.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        ((403, problem(403, "wrong_token", "This scheduler does not know this token.")), 4),
        ((200, {**ANN, "source": "uid", "token_id": None}), 1),
        ((200, {**ANN, "source": "open", "token_id": None}), 1),
    ],
)
def test_login_stores_nothing_that_was_not_verified(
    dgpu, server, monkeypatch, credentials, reply, code
) -> None:
    server.answers["GET", "/api/v1/whoami"] = reply
    type_in(monkeypatch, f"{SECRET}\n")
    got, out, err = dgpu("login", "--server", server.url)
    assert (got, credentials.exists()) == (code, False)
    assert SECRET not in out + err


def test_login_without_a_token_is_a_usage_error(dgpu, server, monkeypatch) -> None:
    type_in(monkeypatch, "\n")
    assert dgpu("login", "--server", server.url)[0] == 2
    assert server.requests == []


def test_logout_forgets(dgpu, server, monkeypatch, credentials) -> None:
    server.answers["GET", "/api/v1/whoami"] = (200, ANN)
    type_in(monkeypatch, f"{SECRET}\n")
    dgpu("login", "--server", server.url)
    assert dgpu("logout", "--server", server.url)[:2] == (0, f"Logged out of {server.url}\n")
    assert SECRET not in credentials.read_text()
    assert "No token is stored" in dgpu("logout", "--server", server.url)[2]


def test_whoami(dgpu, server) -> None:
    server.answers["GET", "/api/v1/whoami"] = (
        200,
        {**ANN, "tenants": ["*"], "role": "admin", "source": "uid"},
    )
    code, out, _ = dgpu("--server", server.url, "whoami")
    assert code == 0
    assert [line.split(None, 1) for line in out.splitlines()][:3] == [
        ["user", "ann"],
        ["role", "admin"],
        ["tenants", "all"],
    ]


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        ("token_needed", "Log in: dgpu login"),
        ("token_revoked", "Log in: dgpu login"),
        ("not_permitted", "dgpu whoami"),
        ("foreign_origin", ""),
    ],
)
def test_a_refusal_names_its_remedy(dgpu, server, code, remedy) -> None:
    server.answers["GET", "/api/v1/whoami"] = (403, problem(403, code, "This is not allowed."))
    got, _, err = dgpu("--server", server.url, "whoami")
    assert got == 4
    told = err.partition("This is not allowed.")[2].strip()
    assert (told == "") if not remedy else (remedy in told)
