"""The client in a process of its own: writes prepared bytes and counts answers.

So lean that on a machine of few cores the server is what is measured. Every submit is acknowledged after its fsync.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

TOKEN_VARIABLE = "BENCH_TOKEN"  # not an argument: those are seen by every user of the machine
CONNECTIONS = {"single": 32, "variables": 32, "distinct": 32, "bulk": 2, "hundred": 4}
PART = {"single": 1, "variables": 1, "distinct": 1, "bulk": 10_000, "hundred": 100}

# As the command line sends them.
VARIABLES = {
    "PATH": "/opt/proj/.venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "VIRTUAL_ENV": "/opt/proj/.venv",
    "LD_LIBRARY_PATH": "/usr/local/cuda/lib64",
    "WANDB_PROJECT": "vision",
}


class Asker(asyncio.Protocol):
    """One connection: sends the next request as soon as an answer is complete."""

    def __init__(self, requests: Iterator[bytes], done: asyncio.Future[None], took: list[float]) -> None:
        self._requests = requests
        self._done = done
        self._took = took
        self._answer = bytearray()
        self._sent_at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]
        self._next()

    def data_received(self, data: bytes) -> None:
        self._answer += data
        head_end = self._answer.find(b"\r\n\r\n")
        if head_end < 0:
            return
        place = self._answer.find(b"content-length: ")
        length = int(self._answer[place + 16 : self._answer.find(b"\r\n", place)])
        if len(self._answer) < head_end + 4 + length:
            return
        if not self._answer.startswith(b"HTTP/1.1 201"):
            raise SystemExit(f"refused: {bytes(self._answer[:500])!r}")
        self._took.append(time.perf_counter() - self._sent_at)
        self._answer.clear()
        self._next()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._done.done():
            self._done.set_exception(exc or ConnectionError("the server closed the connection"))

    def _next(self) -> None:
        request = next(self._requests, None)
        if request is None:
            if not self._done.done():
                self._done.set_result(None)
            self._transport.close()
            return
        self._sent_at = time.perf_counter()
        self._transport.write(request)


def request_of(path: str, body: bytes, headers: str = "") -> bytes:
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{headers}"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def task_of(number: int, command: str) -> dict[str, Any]:
    """Distinct commands and names, as real ones have; or one program with no arguments, for those that run."""
    return {
        "command": [command] if command else f"python train.py --seed {number}",
        "name": f"train-{number}",
        "gpu_count": 1,
        "priority": 50,
    }


def variables_of(kind: str, number: int) -> dict[str, Any]:
    """None, the same for all tasks, or other values for each."""
    if kind == "single":
        return {}
    return {"env": VARIABLES if kind == "variables" else {**VARIABLES, "SEED": str(number)}}


def requests_of(kind: str, number: int, command: str) -> list[bytes]:
    if PART[kind] == 1:
        tasks = [task_of(i, command) | variables_of(kind, i) for i in range(number)]
        token = os.environ.get(TOKEN_VARIABLE)
        headers = f"Authorization: Bearer {token}\r\n" if token else ""
        return [request_of("/api/v1/tasks", json.dumps(task).encode(), headers) for task in tasks]
    parts = [range(start, min(number, start + PART[kind])) for start in range(0, number, PART[kind])]
    return [
        request_of("/api/v1/tasks/batch", json.dumps({"tasks": [task_of(i, command) for i in part]}).encode())
        for part in parts
    ]


async def ask_all(kind: str, port: int, number: int, command: str) -> dict[str, float]:
    requests = requests_of(kind, number, command)
    left = iter(requests)
    took: list[float] = []
    loop = asyncio.get_running_loop()
    began = time.monotonic()
    waiting_for = []
    for _ in range(min(CONNECTIONS[kind], len(requests))):
        done: asyncio.Future[None] = loop.create_future()
        waiting_for.append(done)
        await loop.create_connection(lambda done=done: Asker(left, done, took), "127.0.0.1", port)
    await asyncio.gather(*waiting_for)
    seconds = time.monotonic() - began
    took.sort()
    return {
        "began": began,  # on the clock of the machine, which the caller shares
        "seconds": seconds,
        "p50_ms": round(took[len(took) // 2] * 1000, 2),
        "p99_ms": round(took[len(took) * 99 // 100] * 1000, 2),
    }


def main() -> None:
    import uvloop

    kind, port, number, command = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    print(json.dumps(uvloop.run(ask_all(kind, port, number, command))))


if __name__ == "__main__":
    main()
