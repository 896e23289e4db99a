"""A server of canned answers: the command line speaks real HTTP to it, and what it was sent can be read."""

from __future__ import annotations

import http.server
import json
import threading
import urllib.parse

import pytest

from dgpu.cli.main import run

SUBMITTED = (201, {"task_id": "task-7", "status": "pending", "created_at": "2026-05-04T10:00:00.000Z"})


class CannedServer(http.server.ThreadingHTTPServer):
    """`answers[method, path]` is a status and a body, or a list of them that is used up from the front."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Reply)
        self.answers = {}
        self.requests = []
        self.queries = {}  # the last one of each path

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"

    def sent(self, method, path):
        return [
            body
            for seen_method, seen_path, body in self.requests
            if (seen_method, seen_path) == (method, path)
        ]


class _Reply(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def _reply(self):
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        path, _, query = self.path.partition("?")
        self.server.queries[path] = dict(urllib.parse.parse_qsl(query))
        self.server.requests.append((self.command, path, body))
        found = self.server.answers.get(
            (self.command, path), (404, problem(404, "unknown_route", "No such call."))
        )
        if isinstance(found, list):
            found = found.pop(0) if len(found) > 1 else found[0]
        status, answer = found
        content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_PUT = do_DELETE = _reply  # noqa: N815  names of the standard library

    def log_message(self, *_):
        return


def problem(status, code, detail):
    return {"type": "about:blank", "title": code, "status": status, "detail": detail, "code": code}


def task(number, status="pending", **facts):
    return {
        "task_id": f"task-{number}",
        "tenant_id": "default",
        "pool": "batch",
        "status": status,
        "priority": 50,
        "priority_value": 50,
        "gpu_count": 1,
        "created_at": "2026-05-04T10:00:00.000Z",
        **facts,
    }


@pytest.fixture
def server():
    with CannedServer() as canned:
        thread = threading.Thread(target=canned.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield canned
        canned.shutdown()
        thread.join()


@pytest.fixture
def dgpu(monkeypatch, tmp_path, capfdbinary):
    """Runs a command line; returns its exit code, stdout and stderr. It finds no scheduler but the one it is told."""
    for name in ("DGPU_SERVER", "DGPU_TOKEN", "DGPU_DATA_DIR", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "no-state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))

    def call(*arguments):
        capfdbinary.readouterr()
        code = run(arguments)
        import sys

        sys.stdout.flush()
        out, err = capfdbinary.readouterr()
        return int(code), out.decode(), err.decode()

    return call
