"""A scheduler that hangs: who waits for it is told so, once, and not for long."""

from __future__ import annotations

import socketserver
import threading

import pytest

from dgpu.cli import connection, lateness
from dgpu.cli.lateness import Lateness

from .conftest import task


@pytest.fixture
def silent(monkeypatch):
    """Takes every request and answers none. Its `calls` grows with each."""
    monkeypatch.setattr(lateness, "LATE_SECONDS", 0.05)
    monkeypatch.setattr(connection, "_ANSWER_SECONDS", 0.5)

    class Silence(socketserver.BaseRequestHandler):
        def handle(self):
            calls.append(self.request.recv(65_536))
            done.wait(10)

    calls, done = [], threading.Event()
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Silence) as hung:
        hung.calls = calls
        hung.url = f"http://127.0.0.1:{hung.server_address[1]}"
        threading.Thread(target=hung.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield hung
        done.set()
        hung.shutdown()


@pytest.mark.parametrize("verb", [["ps"], ["logs", "1"], ["wait", "1"], ["cancel", "1"]])
def test_a_scheduler_that_hangs_is_named_once_and_asked_once(dgpu, silent, verb):
    code, out, err = dgpu("--server", silent.url, *verb)
    assert (code, out) == (125 if verb[0] == "wait" else 7, "")
    first, *rest = err.splitlines()
    assert silent.url in first
    assert "0.5 s" in first
    assert "No answer" not in "\n".join(rest)
    assert len(silent.calls) == 1


def test_an_answer_in_time_needs_no_word(dgpu, server, monkeypatch):
    monkeypatch.setattr(lateness, "LATE_SECONDS", 5)
    server.answers["GET", "/api/v1/tasks/task-1"] = (200, task(1, "success"))
    code, _, err = dgpu("--server", server.url, "wait", "1")
    assert (code, err) == (0, "")


def test_after_the_first_answer_nothing_is_said(monkeypatch, capsys):
    """`wait` and `--watch` go on beyond one call: to say when that one gives up would be wrong."""
    late = Lateness(30)
    with late.watch():
        pass  # in time, however slow the machine
    monkeypatch.setattr(lateness, "LATE_SECONDS", 0.01)
    with late.watch():
        threading.Event().wait(0.1)
    assert capsys.readouterr().err == ""
