"""The whole way of a task through real processes: one scheduler, one agent host, a client of its own.

A drain begins when the client connects to submit the first task and ends when a read of the committed state finds
none waiting and none running. So every submit, placement, start and end in between is on disk.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from _cluster import Server, agent_host, scheduler
from _load import request_of
from keeper import direct

NODES = 200
ROUNDS = 3
NULL_TASKS = 10_000
REAL_TASKS = 3_000
DIRECT_SPAWNS = 1_000
IDLE_STARTS = 200
IDLE_WARM_UP = 20
PAUSE_SECONDS = 0.02  # between idle starts: the last one is over, its end committed
LOOK_SECONDS = 0.05  # seldom, so that looking is not what is measured
# As `dgpu up` sets it. Under the cluster's default, batch tasks would get 30 % of the GPUs and the figures
# would be those of a smaller machine.
ALL_GPUS = "quota: {mode: borrow, reclaim: wait}"


def run() -> Iterator[dict[str, Any]]:
    with scheduler(ALL_GPUS) as server, agent_host(server, nodes=NODES, method="simulated"):
        drain(server, "bulk", 2_000, "true")  # warm
        for kind, way in (("bulk", "one batch"), ("single", "one request each")):
            rates = [drain(server, kind, NULL_TASKS, "true") for _ in range(ROUNDS)]
            yield {
                "figure": f"drain, null runner, {NODES} nodes, {way}",
                "value": round(median(rates)),
                "unit": "tasks/s",
                "aim": 1_500,
                "best": round(max(rates)),
                "tasks": NULL_TASKS,
            }
    with scheduler(ALL_GPUS) as server, agent_host(server, nodes=1):
        yield from real_processes(server)
        yield from idle_starts(server)


def real_processes(server: Server) -> Iterator[dict[str, Any]]:
    """`true` on 8 GPUs, beside a loop that does nothing but spawn and wait, eight at a time."""
    drain(server, "bulk", 500, "true")
    for kind, way in (("bulk", "one batch"), ("single", "one request each")):
        rates, ratios = [], []
        for _ in range(ROUNDS):
            bare = direct(DIRECT_SPAWNS)
            rates.append(drain(server, kind, REAL_TASKS, "true"))
            ratios.append(rates[-1] / ((bare + direct(DIRECT_SPAWNS)) / 2))
        yield {
            "figure": f"drain, real processes, 8 GPUs, {way}",
            "value": round(median(rates)),
            "unit": "tasks/s",
            "aim": 800,
            "best": round(max(rates)),
            "of_bare_spawns": round(median(ratios), 3),
            "bare_spawns": round(median(rates) / median(ratios)),
        }


def drain(server: Server, kind: str, number: int, command: str) -> float:
    done = server.total("success")
    began = server.load(kind, number, command)["began"]
    while server.total("pending") or server.total("running"):
        time.sleep(LOOK_SECONDS)
    seconds = time.monotonic() - began
    finished = server.total("success") - done
    if finished != number:
        raise SystemExit(f"{finished} of {number} tasks succeeded")
    return number / seconds


def idle_starts(server: Server) -> Iterator[dict[str, Any]]:
    """From just before the request is written until this process has read the byte that the task wrote to a pipe.

    Nothing is subtracted: the request, its fsync, the way to the node, the start of a shell, and our own waking up.
    """
    pipe = server.folder / "started"
    os.mkfifo(pipe)
    heard = os.open(pipe, os.O_RDWR)  # a writer of our own: it never reads as closed
    body = json.dumps({"command": f"echo > {pipe}", "gpu_count": 1}).encode()
    request = request_of("/api/v1/tasks", body)
    starts, acks = [], []
    with socket.create_connection(("127.0.0.1", server.http_port)) as link:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for turn in range(IDLE_WARM_UP + IDLE_STARTS):
            began = time.perf_counter()
            link.sendall(request)
            link.recv(65_536)
            acked = time.perf_counter()
            os.read(heard, 16)
            started = time.perf_counter()
            if turn >= IDLE_WARM_UP:
                starts.append((started - began) * 1_000)
                acks.append((acked - began) * 1_000)
            time.sleep(PAUSE_SECONDS)
    os.close(heard)
    starts.sort()
    acks.sort()
    yield {
        "figure": "idle submit to process started, p50",
        "value": round(median(starts), 2),
        "unit": "ms",
        "aim": 4,
        "p99_ms": round(starts[len(starts) * 99 // 100], 2),
        "durable_answer_p50_ms": round(median(acks), 2),
        "shell_alone_p50_ms": shell_alone_ms(pipe),
    }


def shell_alone_ms(pipe: Path) -> float:
    """The same shell started from here: the part of the figure that no scheduler can take away."""
    heard = os.open(pipe, os.O_RDWR)
    took = []
    for _ in range(IDLE_STARTS):
        began = time.perf_counter()
        pid = os.posix_spawn("/bin/sh", ["sh", "-c", f"echo > {pipe}"], {}, setsid=True)
        os.read(heard, 16)
        took.append((time.perf_counter() - began) * 1_000)
        os.waitpid(pid, 0)
        time.sleep(PAUSE_SECONDS)
    os.close(heard)
    return round(median(took), 2)


if __name__ == "__main__":
    for line in run():
        print(json.dumps(line), flush=True)
