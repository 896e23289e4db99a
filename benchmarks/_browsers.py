"""Open dashboards in a process of its own: reads the shared stream on many connections and counts what came.

Prints a line when every stream has begun, and another one with what it counted when its input ends. The browsers use
the tokens of the environment in turn, if there are any.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys

TOKENS = "DGPU_BENCH_TOKENS"


class Browser(asyncio.Protocol):
    def __init__(self, port: int, begun: asyncio.Future[None], token: str) -> None:
        self._port = port
        self._token = token
        self._begun = begun
        self.read_bytes = 0
        self.pieces = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        head = (
            f"GET /api/v1/board/stream HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\nAccept-Encoding: gzip\r\n"
        )
        whose = f"Authorization: Bearer {self._token}\r\n" if self._token else ""
        transport.write(f"{head}{whose}\r\n".encode())  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        if not self._begun.done():
            if not data.startswith(b"HTTP/1.1 200"):
                raise SystemExit(f"refused: {data[:300]!r}")
            self._begun.set_result(None)
        self.read_bytes += len(data)
        self.pieces += 1


async def look(port: int, number: int) -> None:
    loop = asyncio.get_running_loop()
    browsers = []
    tokens = os.environ.get(TOKENS, "").split(",")
    for place in range(number):
        begun: asyncio.Future[None] = loop.create_future()
        browser = Browser(port, begun, tokens[place % len(tokens)])
        await loop.create_connection(lambda browser=browser: browser, "127.0.0.1", port)
        await begun
        browsers.append(browser)
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    told = {
        "read_bytes": sum(each.read_bytes for each in browsers),
        "pieces": sum(each.pieces for each in browsers),
    }
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    import uvloop

    uvloop.run(look(int(sys.argv[1]), int(sys.argv[2])))
