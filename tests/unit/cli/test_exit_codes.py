"""Scripts read exit codes; people read one or two lines on stderr. Nothing of a failure goes to stdout."""

from __future__ import annotations

import asyncio
import json
import socket
import socketserver
import threading

import pytest

from dgpu.client import AsyncClient, Unreachable

from .conftest import problem, task


def free_url():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


@pytest.mark.parametrize(
    "arguments",
    [
        ["no-such-verb"],
        ["ps", "--no-such-flag"],
        ["ps", "-o", "xml"],
        ["ps", "-s", "sleeping"],
        ["show", "seven"],
        ["show"],
        ["why", "0"],
        ["logs", "../1"],
        ["cancel"],
        ["cancel", "1", "--all"],
        ["cancel", "1", "-A", "me"],
        ["cancel", "--all", "-s", "success"],
        ["wait"],
        ["submit"],
        ["submit", "-G", "two", "--", "true"],
        ["submit", "-G", "1.5", "--", "true"],
        ["submit", "--mem", "lots", "--", "true"],
        ["submit", "-t", "soon", "--", "true"],
        ["submit", "-p", "!", "--", "true"],
        ["submit", "-e", "1=2", "--", "true"],
        ["submit", "--after", "later", "--", "true"],
        ["run"],
        ["nodes", "drain"],
        ["nodes", "drain", "a/b"],
        ["nodes", "explode"],
        ["--server", "ftp://x", "ps"],
        ["--token", "s3cr\net", "ps"],
        ["top", "--once", "--token", "s3cr\x00et"],
        ["--token", "s3crét", "submit", "--", "true"],
        ["completion", "cmd.exe"],
        ["install-service", "dashboard"],
        ["install-service", "agent", "--print"],
        ["up", "--nodes", "0"],
        ["up", "--fake", "0xV100"],
        ["up", "--http-port", "70000"],
        ["down", "--data-dir", ""],
        ["doctor", "--data-dir", ""],
        ["install-service", "--print", "--data-dir", ""],
    ],
)
def test_wrong_usage_is_2_and_says_what_would_be_right(dgpu, arguments):
    code, out, err = dgpu(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("dgpu: ")
    assert "Traceback" not in err
    assert len(err.strip().splitlines()) <= 3


@pytest.mark.parametrize(
    "verb", [["ps"], ["show", "1"], ["submit", "--", "true"], ["nodes"], ["gpus"], ["queue"]]
)
def test_no_scheduler_is_3_and_says_how_to_start_one(dgpu, verb):
    url = free_url()
    code, out, err = dgpu(*verb, "--server", url) if "--" not in verb else dgpu("--server", url, *verb)
    assert (code, out) == (3, "")
    assert url in err
    assert "dgpu up" in err


@pytest.mark.parametrize("arguments", [["--data-dir", ""], ["--detach", "--data-dir", " "]])
def test_up_does_not_take_an_empty_directory_for_the_current_one(dgpu, monkeypatch, arguments):
    started = []
    monkeypatch.setattr("dgpu.entry.up.up", started.append)  # it would stay in the foreground
    monkeypatch.setattr("dgpu.entry.up.up_detached", started.append)
    code, out, err = dgpu("up", *arguments)
    assert (code, out, started) == (2, "", [])
    assert "--data-dir" in err


def test_a_token_that_cannot_be_sent_is_named_and_not_repeated(dgpu, monkeypatch):
    monkeypatch.setenv("DGPU_TOKEN", "s3cret\r\nHost: x")
    code, _, err = dgpu("ps")
    assert (code, "--token" in err, "s3cret" in err) == (2, True, False)


@pytest.fixture
def grpc_port():
    """Greets whoever connects as HTTP/2 does, in bytes that no terminal should get."""

    class Greeter(socketserver.BaseRequestHandler):
        def handle(self):
            self.request.sendall(b"\x00\x00\x12\x04\x00\x00\x00\x00\x00\x1b[2J\x00\x04\x00\x3f\xff\xff")
            self.request.recv(65_536)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Greeter) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def test_a_port_that_speaks_no_http_is_told_from_a_scheduler_that_is_down(dgpu, grpc_port):
    code, out, err = dgpu("--server", f"http://127.0.0.1:{grpc_port}", "ps")
    assert (code, out) == (3, "")
    assert "does not speak HTTP" in err
    assert "gRPC port" in err
    assert "dgpu up" not in err
    assert err.replace("\n", "").isprintable()


def test_the_async_client_tells_it_too(grpc_port):
    async def ask():
        async with AsyncClient(f"http://127.0.0.1:{grpc_port}", retries=0) as client:
            await client.health()

    with pytest.raises(Unreachable, match="does not speak HTTP"):
        asyncio.run(ask())


@pytest.mark.parametrize("verb", [["run", "--", "true"], ["wait", "1"], ["submit", "--wait", "--", "true"]])
def test_verbs_that_return_a_tasks_code_say_125_for_failures_of_our_own(dgpu, verb):
    """A task may itself end with 3; a script must be able to tell the two apart."""
    code, out, err = dgpu("--server", free_url(), *verb)
    assert (code, out) == (125, "")
    assert "No scheduler answers" in err


@pytest.mark.parametrize(
    ("status", "code"),
    [(400, 2), (401, 4), (403, 4), (404, 5), (409, 6), (422, 6), (429, 6), (507, 6), (500, 1)],
)
def test_refusals_of_the_server_have_codes_and_its_own_words(dgpu, server, status, code):
    server.answers["POST", "/api/v1/tasks"] = (
        status,
        problem(status, "some_code", "Exactly this went wrong."),
    )
    seen, out, err = dgpu("--server", server.url, "submit", "--", "true")
    assert (seen, out) == (code, "")
    assert "Exactly this went wrong." in err


def test_an_answer_that_is_no_problem_document_is_told_without_a_traceback(dgpu, server):
    server.answers["GET", "/api/v1/nodes"] = (502, b"<html>proxy</html>")
    code, out, err = dgpu("nodes", "--server", server.url)
    assert (code, out) == (1, "")
    assert "502" in err


@pytest.mark.parametrize(
    ("facts", "code"),
    [
        ({"status": "success", "exit_code": 0}, 0),
        ({"status": "failed", "exit_code": 3, "reason": "exit_code"}, 3),
        ({"status": "failed", "exit_code": 137, "reason": "signal"}, 137),
        ({"status": "failed", "exit_code": -9, "reason": "signal"}, 137),
        ({"status": "failed", "exit_code": 143, "reason": "timeout"}, 124),
        ({"status": "failed", "reason": "timeout"}, 124),
        ({"status": "cancelled"}, 130),
        ({"status": "failed", "reason": "node_fault"}, 125),
    ],
)
def test_wait_returns_the_tasks_own_code(dgpu, server, facts, code):
    server.answers["GET", "/api/v1/tasks/task-1"] = (200, task(1, **facts))
    seen, out, _ = dgpu("wait", "1", "--server", server.url)
    assert seen == code
    assert "task-1" in out


def test_of_several_tasks_the_first_code_that_is_not_0_counts(dgpu, server):
    for number, exit_code in ((1, 0), (2, 7), (3, 9)):
        status = "failed" if exit_code else "success"
        server.answers["GET", f"/api/v1/tasks/task-{number}"] = (
            200,
            task(number, status, exit_code=exit_code),
        )
    assert dgpu("wait", "1", "2", "3", "--server", server.url)[0] == 7


def test_wait_gives_up_with_7_when_told_how_long(dgpu, server):
    server.answers["GET", "/api/v1/tasks/task-1"] = (200, task(1, "running"))
    code, out, err = dgpu("wait", "1", "--at-most", "0.1s", "--server", server.url)
    assert (code, out) == (7, "")
    assert "task-1" in err


def test_flags_work_before_and_after_the_verb_and_the_later_one_counts(dgpu, server):
    server.answers["GET", "/api/v1/nodes"] = (200, {"total": 0, "nodes": []})
    assert json.loads(dgpu("--server", server.url, "-o", "yaml", "nodes", "--json")[1]) == {
        "total": 0,
        "nodes": [],
        "isolation": "",
    }
    assert dgpu("nodes", "list", "--server", server.url, "-o", "name")[0] == 0


def test_a_fault_of_our_own_is_a_line_and_not_a_traceback(dgpu, monkeypatch):
    import dgpu.cli.version as module

    def broken(_):
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(module, "flags_of", broken)
    code, out, err = dgpu("version")
    assert (code, out) == (1, "")
    assert "ZeroDivisionError: oops" in err
    assert "Traceback" not in err
