"""Those who get alerts: a web server and a mail server on loopback, which can be told to fail."""

from __future__ import annotations

import http.server
import json
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email import message_from_bytes
from email.message import Message
from typing import Any, NamedTuple


class Posted(NamedTuple):
    headers: dict[str, str]
    raw: bytes
    path: str

    @property
    def body(self) -> Any:
        return json.loads(self.raw)


class WebhookServer(http.server.ThreadingHTTPServer):
    """`answers` are the statuses of the next requests; then 200."""

    daemon_threads = True

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Hook)
        self.answers: list[int] = []
        self.received: list[Posted] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def bodies(self, state: str) -> list[Any]:
        return [posted.body for posted in tuple(self.received) if posted.body["state"] == state]


class _Hook(http.server.BaseHTTPRequestHandler):
    server: WebhookServer

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers["Content-Length"]))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.received.append(Posted(headers, raw, self.path))
        status = self.server.answers.pop(0) if self.server.answers else 200
        self.send_response(status)
        if 300 <= status < 400:
            self.send_header("Location", f"{self.server.url}/elsewhere")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        return


class MailServer(socketserver.ThreadingTCPServer):
    """Just enough SMTP to take a mail."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Smtp)
        self.mails: list[Message] = []

    @property
    def port(self) -> int:
        return int(self.server_address[1])


class _Smtp(socketserver.StreamRequestHandler):
    server: MailServer

    def handle(self) -> None:
        self._say("220 loopback")
        while line := self.rfile.readline():
            verb = line.strip().upper()
            if verb == b"DATA":
                self._say("354 go on")
                lines = []
                while (text := self.rfile.readline()) not in {b".\r\n", b""}:
                    lines.append(text)
                self.server.mails.append(message_from_bytes(b"".join(lines)))
            if verb == b"QUIT":
                self._say("221 bye")
                return
            self._say("250 ok")

    def _say(self, line: str) -> None:
        self.wfile.write(f"{line}\r\n".encode())


@contextmanager
def serving(server: socketserver.BaseServer) -> Iterator[None]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def eventually(look: Callable[[], Any], seconds: float = 30) -> Any:
    """The first thing that `look` finds; fails if it finds nothing."""
    until = time.monotonic() + seconds
    while True:
        seen = look()
        if seen:
            return seen
        assert time.monotonic() < until, "it did not come"
        time.sleep(0.02)
