"""Serves a language model over HTTP, with the answer as a stream of text.

dgpu run --port 8000 -e DGPU_EXAMPLE_WEIGHTS=/models/deepseek-llm-7b-chat -- python examples/serve_llm.py
dgpu forward 42 8000 &
curl -N -d '{"prompt": "Hello", "length": 64}' http://127.0.0.1:8000/generate
"""

from __future__ import annotations

import http.server
import json
import os
import sys
from typing import Any

from language_model import LanguageModel, load_model

MAX_BODY_BYTES = 1 << 20
MAX_LENGTH = 4_096


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    model: LanguageModel

    def do_GET(self) -> None:
        """For health checks."""
        self._answer(
            200 if self.path == "/healthz" else 404, b"ok\n" if self.path == "/healthz" else b"not found\n"
        )

    def do_POST(self) -> None:
        try:
            length = int(self.headers.get("Content-Length", "0"))
            if length > MAX_BODY_BYTES:
                self._answer(413, b"the body is too large\n")
                return
            asked = json.loads(self.rfile.read(length))
            prompt, wanted = str(asked["prompt"]), min(int(asked.get("length", 64)), MAX_LENGTH)
        except (ValueError, KeyError, TypeError):
            self._answer(400, b'expected {"prompt": TEXT, "length": NUMBER}\n')
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for piece in self.model.stream(prompt, wanted):
            self._chunk(piece.encode())
        self.wfile.write(b"0\r\n\r\n")

    def _chunk(self, data: bytes) -> None:
        if data:  # an empty one would end the answer
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            self.wfile.flush()

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name of the standard library
        print(format % args, flush=True)


def main() -> None:
    try:
        Handler.model = load_model()
    except RuntimeError as error:
        sys.exit(str(error))
    port = int(os.environ.get("DGPU_PORT", "8000"))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
    print(f"serving on port {server.server_address[1]}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
