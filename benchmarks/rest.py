"""The REST service of a real scheduler process, asked by a lean client in a process of its own.

The client writes prepared bytes and counts answers, so that on a machine of few cores the server is what is measured.
Every submit is acknowledged after its fsync.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

CONNECTIONS = 32
SINGLE_SUBMITS = 20_000
BULK_TASKS = 200_000
BULK_PART = 10_000
WAITING = 20_000
PAGES = 50


def run() -> Iterator[dict[str, Any]]:
    with scheduler() as server:
        server.load("single", 2_000)  # warm
        yield from singles(server)
    with scheduler() as server:
        yield from waiting(server)
    with scheduler() as server:
        yield bulk(server)


def singles(server: Server) -> Iterator[dict[str, Any]]:
    took = server.load("single", SINGLE_SUBMITS)
    yield {
        "figure": "durable single submits",
        "value": round(SINGLE_SUBMITS / took["seconds"]),
        "unit": "1/s",
        "aim": 3_000,
        "connections": CONNECTIONS,
        "p50_ms": took["p50_ms"],
        "p99_ms": took["p99_ms"],
    }


def bulk(server: Server) -> dict[str, Any]:
    took = server.load("bulk", BULK_TASKS)
    return {
        "figure": "durable bulk submits",
        "value": round(BULK_TASKS / took["seconds"]),
        "unit": "1/s",
        "aim": 50_000,
        "part": BULK_PART,
    }


def waiting(server: Server) -> Iterator[dict[str, Any]]:
    server.load("bulk", 1_000)
    server.post("/api/v1/tasks/cancel", {"status": "pending"})
    time.sleep(1)
    before = server.rss_bytes()
    server.load("bulk", WAITING)
    time.sleep(2)
    grown = server.rss_bytes() - before
    yield {
        "figure": "memory per waiting task",
        "value": round(grown / WAITING),
        "unit": "bytes",
        "aim": 1_024,
        "tasks": WAITING,
    }
    cursor = server.get("/api/v1/tasks?limit=1000")["next_cursor"]
    for name, path in (
        ("list page of 100", "/api/v1/tasks"),
        ("list page of 100, filtered by status", "/api/v1/tasks?status=pending"),
        ("list page of 100, filter that takes nothing", "/api/v1/tasks?tenant=nobody"),
        ("list page of 1000, from within", f"/api/v1/tasks?limit=1000&cursor={cursor}"),
        ("queue page of 100", "/api/v1/queue"),
    ):
        yield server.time_of(name, path, aim=None if "1000" in name else 10)
    yield server.time_of("why of the last", f"/api/v1/tasks/{1_000 + WAITING}/why", aim=20)
    began = time.perf_counter()
    cancelled = server.post("/api/v1/tasks/cancel", {"status": "pending"})["cancelled"]
    yield {
        "figure": "cancel all",
        "value": round(time.perf_counter() - began, 3),
        "unit": "s",
        "aim": 0.5,
        "tasks": cancelled,
    }


class Server:
    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self._process = process
        self._port = port
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)

    def wait_until_ready(self) -> None:
        for _ in range(1_000):
            with contextlib.suppress(OSError, http.client.HTTPException):
                if self.get("/ready").get("ready"):
                    return
            self._connection.close()
            if self._process.poll() is not None:
                raise SystemExit("the scheduler ended before it was ready")
            time.sleep(0.02)
        raise SystemExit("the scheduler did not become ready")

    def load(self, kind: str, number: int) -> dict[str, float]:
        """From a process of its own; its result is one line of JSON."""
        command = [sys.executable, __file__, kind, str(self._port), str(number)]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=600)
        result: dict[str, float] = json.loads(done.stdout)
        return result

    def get(self, path: str) -> dict[str, Any]:
        self._connection.request("GET", path)
        return dict(json.loads(self._connection.getresponse().read()))

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        self._connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        return dict(json.loads(self._connection.getresponse().read()))

    def time_of(self, name: str, path: str, aim: float | None) -> dict[str, Any]:
        took = []
        for _ in range(PAGES):
            began = time.perf_counter()
            self.get(path)
            took.append((time.perf_counter() - began) * 1000)
        return {
            "figure": f"{name}, {WAITING:,} waiting",
            "value": round(median(took), 2),
            "unit": "ms",
            "aim": aim,
            "worst_ms": round(max(took), 2),
        }

    def rss_bytes(self) -> int:
        pages = Path(f"/proc/{self._process.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")


@contextlib.contextmanager
def scheduler() -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="dgpu-bench-") as folder:
        http_port, grpc_port = free_port(), free_port()
        config = Path(folder, "scheduler.yaml")
        config.write_text(
            f"server: {{http_address: '127.0.0.1:{http_port}', grpc_address: '127.0.0.1:{grpc_port}'}}\n"
            f"storage: {{snapshot_dir: {folder}/state}}\nlogging: {{level: warning}}\n"
        )
        command = [sys.executable, "-m", "dgpu", "scheduler", "--config", str(config)]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            server = Server(process, http_port)
            server.wait_until_ready()
            yield server
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# The load, in its own process.


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


def request_of(path: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def task_of(number: int) -> dict[str, Any]:
    """Distinct commands and names, as real ones have."""
    return {
        "command": f"python train.py --seed {number}",
        "name": f"train-{number}",
        "gpu_count": 1,
        "priority": 50,
    }


def requests_of(kind: str, number: int) -> list[bytes]:
    if kind == "single":
        return [request_of("/api/v1/tasks", json.dumps(task_of(i)).encode()) for i in range(number)]
    parts = [range(start, min(number, start + BULK_PART)) for start in range(0, number, BULK_PART)]
    return [
        request_of("/api/v1/tasks/batch", json.dumps({"tasks": [task_of(i) for i in part]}).encode())
        for part in parts
    ]


async def ask_all(kind: str, port: int, number: int) -> dict[str, float]:
    requests = requests_of(kind, number)
    left = iter(requests)
    took: list[float] = []
    loop = asyncio.get_running_loop()
    connections = CONNECTIONS if kind == "single" else 2
    began = time.perf_counter()
    waiting_for = []
    for _ in range(min(connections, len(requests))):
        done: asyncio.Future[None] = loop.create_future()
        waiting_for.append(done)
        await loop.create_connection(lambda done=done: Asker(left, done, took), "127.0.0.1", port)
    await asyncio.gather(*waiting_for)
    seconds = time.perf_counter() - began
    took.sort()
    return {
        "seconds": seconds,
        "p50_ms": round(took[len(took) // 2] * 1000, 2),
        "p99_ms": round(took[len(took) * 99 // 100] * 1000, 2),
    }


def main() -> None:
    import uvloop

    kind, port, number = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    print(json.dumps(uvloop.run(ask_all(kind, port, number))))


if __name__ == "__main__":
    if len(sys.argv) == 4:
        main()
    else:
        for line in run():
            print(json.dumps(line), flush=True)
