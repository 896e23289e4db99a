"""`retry` and `dashboard`: what they send, and what they show."""

from __future__ import annotations

import json
import webbrowser

import pytest

from .conftest import problem

CODE = {"code": "c0de", "url_path": "/#code=c0de", "expires_in_seconds": 300}


def retried(number: int, of: int) -> dict[str, str]:
    return {
        "task_id": f"task-{number}",
        "status": "pending",
        "created_at": "2026-05-04T10:00:00.000Z",
        "retry_of": f"task-{of}",
    }


def test_retry_prints_the_new_ids(dgpu, server):
    server.answers["POST", "/api/v1/tasks/task-1/retry"] = (201, retried(8, 1))
    server.answers["POST", "/api/v1/tasks/task-2/retry"] = (201, retried(9, 2))
    assert dgpu("--server", server.url, "retry", "1", "task-2")[:2] == (0, "task-8\ntask-9\n")
    assert server.sent("POST", "/api/v1/tasks/task-1/retry") == [{}]
    code, out, _ = dgpu("--server", server.url, "retry", "1", "--json")
    assert (code, json.loads(out)["retry_of"]) == (0, "task-1")


def test_retry_of_several_tells_those_before_the_one_that_is_refused(dgpu, server):
    server.answers["POST", "/api/v1/tasks/task-1/retry"] = (201, retried(8, 1))
    server.answers["POST", "/api/v1/tasks/task-2/retry"] = (
        409,
        problem(409, "not_ended", "task-2 is running."),
    )
    code, out, err = dgpu("--server", server.url, "retry", "1", "2")
    assert code != 0
    assert out == "task-8\n"
    assert "task-2 is running" in err


@pytest.fixture
def opened(monkeypatch):
    urls: list[str] = []
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr(webbrowser, "open", lambda url: urls.append(url) or True)
    return urls


def test_the_own_users_browser_is_opened_without_a_code(dgpu, server, opened):
    server.answers["GET", "/api/v1/session"] = (200, {"access": "user"})
    assert dgpu("--server", server.url, "dashboard")[:2] == (0, f"{server.url}/\n")
    assert opened == [f"{server.url}/"]
    assert server.sent("POST", "/api/v1/session/code") == []


def test_others_get_an_address_that_works_once_and_no_process_is_told_it(dgpu, server, opened):
    server.answers["GET", "/api/v1/session"] = (200, {"access": "token"})
    server.answers["POST", "/api/v1/session/code"] = (201, CODE)
    assert dgpu("--server", server.url, "dashboard")[:2] == (0, f"{server.url}/#code=c0de\n")
    assert dgpu("--server", server.url, "dashboard", "--print-url")[1] == f"{server.url}/#code=c0de\n"
    assert (
        json.loads(dgpu("--server", server.url, "dashboard", "--json")[1])["url"]
        == f"{server.url}/#code=c0de"
    )
    assert opened == []


def test_without_a_display_the_address_is_printed(dgpu, server, opened, monkeypatch):
    monkeypatch.delenv("DISPLAY")
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    server.answers["GET", "/api/v1/session"] = (200, {"access": "user"})
    server.answers["POST", "/api/v1/session/code"] = (201, CODE)
    assert dgpu("--server", server.url, "dashboard")[1] == f"{server.url}/#code=c0de\n"
    assert opened == []
