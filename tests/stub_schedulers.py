"""Small HTTP servers that play a master and a standby, until two real schedulers can share a journal."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
from collections.abc import Iterator

TASK = {
    "task_id": "task-1",
    "tenant_id": "default",
    "pool": "batch",
    "status": "pending",
    "priority": 50,
    "priority_value": 50,
    "gpu_count": 1,
    "created_at": "2026-05-04T10:00:00.000Z",
}


class StubScheduler(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, role: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.role = role
        self.master = ""  # named in refusals
        self.lag_ms = 0
        self.keys: dict[str, str] = {}  # shared with the other schedulers, like a journal
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.loses = 0  # answers that get lost after the deed
        self.streams: list[list[bytes]] = []  # the next ones; each ends abruptly
        self.tasks: set[str] = set()
        self.tokens = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up is not worth a trace."""


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: StubScheduler

    def do_GET(self) -> None:
        server = self._note()
        path = self.path.partition("?")[0]
        if path.endswith(("/events", "/logs")):
            self._stream()
        elif path == "/api/v1/tasks/task-1" and "task-1" not in server.tasks:
            self._answer(
                404, {"code": "unknown_task", "title": "t", "status": 404, "detail": "No such task."}
            )
        else:
            self._answer(200, TASK if path.startswith("/api/v1/tasks/") else {"total": 0, "nodes": []})

    def do_POST(self) -> None:
        server = self._note()
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if server.role != "master":
            problem = {"code": "not_master", "title": "Standby", "status": 503, "detail": "Not the master."}
            self._answer(503, {**problem, "master": server.master}, {"Retry-After": "0"})
            return
        if self.path == "/api/v1/tokens":
            server.tokens += 1
        key = self.headers.get("Idempotency-Key") or ""
        task_id = server.keys.setdefault(key, f"task-{len(server.keys) + 1}")
        server.tasks.add(task_id)
        if server.loses:
            server.loses -= 1
            self.close_connection = True
            return
        self._answer(201, {"task_id": task_id, "status": "pending", "created_at": TASK["created_at"]})

    def _note(self) -> StubScheduler:
        self.server.requests.append((self.command, self.path, dict(self.headers)))
        return self.server

    def _answer(self, status: int, body: object, headers: dict[str, str] | None = None) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self._marks(headers or {})
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _marks(self, more: dict[str, str]) -> None:
        marks = {"Dgpu-Role": self.server.role, "Dgpu-Lag-Ms": str(self.server.lag_ms), **more}
        for name, value in marks.items():
            self.send_header(name, value)

    def _stream(self) -> None:
        """The last stream ends properly, the others in the middle."""
        pieces = self.server.streams.pop(0)
        self.send_response(200)
        self._marks({"Transfer-Encoding": "chunked"})
        self.end_headers()
        for piece in pieces:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        if not self.server.streams and self.path.partition("?")[0].endswith("/logs"):
            self.wfile.write(b"0\r\n\r\n")
        self.close_connection = True

    def log_message(self, *_: object) -> None: ...


@contextlib.contextmanager
def stub_schedulers(*roles: str) -> Iterator[list[StubScheduler]]:
    servers = [StubScheduler(role) for role in roles]
    threads = [
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        for server in servers
    ]
    for server in servers:
        server.keys, server.tasks = servers[0].keys, servers[0].tasks
    for thread in threads:
        thread.start()
    try:
        yield servers
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()
        for thread in threads:
            thread.join()
