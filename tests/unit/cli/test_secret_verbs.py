"""secret and --secret at the command line. A value comes from a prompt, stdin or a file, never from an argument."""

from __future__ import annotations

import base64
import getpass
import io
import sys

import pytest

from .conftest import task

WORD = "xyzzy-plugh"
PATH = "/api/v1/tenants/lab/secrets/KEY"
DONE = {
    "name": "KEY",
    "tenant_id": "lab",
    "version": 3,
    "set_by": "ann",
    "set_at": "2026-11-01T00:00:00.000Z",
}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def pipe(monkeypatch, value: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(value)))


@pytest.fixture
def ready(server):
    server.answers["PUT", PATH] = (200, DONE)
    server.answers["GET", "/api/v1/whoami"] = (
        200,
        {"user": "ann", "role": "user", "tenants": ["lab", "b"], "source": "token", "token_id": "k"},
    )
    return server


def sent(server) -> list[bytes]:
    return [base64.b64decode(body["value_base64"]) for body in server.sent("PUT", PATH)]


def test_stdin_without_the_line_end_that_echo_adds(dgpu, ready, monkeypatch) -> None:
    pipe(monkeypatch, f"{WORD}\n".encode())
    code, out, err = dgpu("--server", ready.url, "secret", "set", "KEY")
    assert (code, out) == (0, "Secret KEY of tenant lab is set: version 3\n")
    assert sent(ready) == [WORD.encode()]
    assert "dgpu submit -A lab --secret KEY" in err
    assert WORD not in out + err


def test_a_file_is_sent_byte_by_byte(dgpu, ready, tmp_path) -> None:
    (tmp_path / "key").write_bytes(b"\0\xff\n")
    assert (
        dgpu(
            "--server", ready.url, "secret", "set", "KEY", "-A", "lab", "--from-file", str(tmp_path / "key")
        )[0]
        == 0
    )
    assert sent(ready) == [b"\0\xff\n"]


def test_a_terminal_is_asked_without_echo(dgpu, ready, monkeypatch) -> None:
    asked = []
    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr(getpass, "getpass", lambda prompt: asked.append(prompt) or WORD)
    assert dgpu("--server", ready.url, "secret", "set", "KEY", "-A", "lab")[0] == 0
    assert (asked, sent(ready)) == (["Value of KEY: "], [WORD.encode()])


def test_no_argument_takes_a_value(dgpu, ready, monkeypatch) -> None:
    pipe(monkeypatch, b"")
    for arguments in (["KEY", WORD], [f"KEY={WORD}"], ["KEY"], ["KEY", "--from-file", "/nothing/there"]):
        assert dgpu("--server", ready.url, "secret", "set", *arguments)[0] == 2
    assert ready.sent("PUT", PATH) == []


def test_a_value_that_is_too_long_is_not_sent(dgpu, ready, monkeypatch) -> None:
    pipe(monkeypatch, b"x" * 65_537)
    code, _, err = dgpu("--server", ready.url, "secret", "set", "KEY", "-A", "lab")
    assert (code, "65,536 bytes" in err, ready.requests) == (2, True, [])


def test_list_shows_no_value_and_filters_by_tenant(dgpu, server) -> None:
    other = {**DONE, "name": "B", "tenant_id": "b"}
    server.answers["GET", "/api/v1/secrets"] = (200, {"total": 2, "secrets": [DONE, other]})
    _, out, _ = dgpu("--server", server.url, "secret")
    assert [line.split()[:4] for line in out.splitlines()] == [
        ["NAME", "TENANT", "VERSION", "SET-BY"],
        ["KEY", "lab", "3", "ann"],
        ["B", "b", "3", "ann"],
    ]
    _, out, _ = dgpu("--server", server.url, "secret", "list", "-A", "b", "-o", "name")
    assert out == "B\n"


def test_delete_and_rotate(dgpu, ready) -> None:
    ready.answers["DELETE", PATH] = (200, {"id": "KEY", "removed": True})
    ready.answers["POST", "/api/v1/secrets/rotate"] = (
        200,
        {"secrets": 4, "tasks": 5, "unreadable": 1, "dropped_keys": 1},
    )
    assert dgpu("--server", ready.url, "secret", "delete", "KEY")[:2] == (0, "KEY\n")
    code, out, err = dgpu("--server", ready.url, "secret", "rotate")
    assert (code, out) == (0, "Encrypted under a new key: 4 secrets, variables of 5 tasks\n")
    assert "1 values cannot be read" in err


@pytest.mark.parametrize(
    ("given", "uses"),
    [
        (["A"], {"A": {"env": "A"}}),
        (["A=TOKEN", "b:file"], {"A": {"env": "TOKEN"}, "b": {"file": "b"}}),
        (["b:file=tls.pem"], {"b": {"file": "tls.pem"}}),
    ],
)
def test_a_task_names_its_secrets(dgpu, server, given: list[str], uses: dict[str, dict[str, str]]) -> None:
    submitted = {"task_id": "task-1", "status": "pending", "created_at": "2026-05-04T10:00:00.000Z"}
    server.answers["POST", "/api/v1/tasks"] = (201, submitted)
    server.answers["GET", "/api/v1/tasks/task-1"] = (200, task(1))
    flags = [word for each in given for word in ("--secret", each)]
    assert dgpu("--server", server.url, "submit", *flags, "--", "true")[0] == 0
    assert server.sent("POST", "/api/v1/tasks")[0]["secrets"] == uses


@pytest.mark.parametrize("given", ["", "=X", "A:env", "A=", "A:file="])
def test_a_wrong_use_is_a_usage_error(dgpu, server, given: str) -> None:
    code, _, err = dgpu("--server", server.url, "submit", "--secret", given, "--", "true")
    assert (code, server.requests) == (2, [])
    assert "write NAME, NAME=VARIABLE, NAME:file or NAME:file=FILE" in err


def test_a_secret_is_used_once(dgpu, server) -> None:
    code, _, err = dgpu("--server", server.url, "submit", "--secret", "A", "--secret", "A=B", "--", "true")
    assert (code, "A is given twice" in err) == (2, True)
