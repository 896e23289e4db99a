"""The REST service of a real scheduler process, asked by a lean client in a process of its own."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from statistics import median
from typing import Any

from _cluster import Server, scheduler
from _load import CONNECTIONS, PART

SINGLE_SUBMITS = 20_000
TOKEN_ROUNDS = 5
BULK_TASKS = 200_000
WAITING = 20_000
PAGES = 50
VARIABLE_ROUNDS = 5
VARIABLE_SUBMITS = 3_000


def run() -> Iterator[dict[str, Any]]:
    with scheduler() as server:
        server.load("single", 2_000)  # warm
        yield from singles(server)
        yield with_token(server)
        yield from with_variables(server)
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
        "connections": CONNECTIONS["single"],
        "p50_ms": took["p50_ms"],
        "p99_ms": took["p99_ms"],
    }


def with_token(server: Server) -> dict[str, Any]:
    """The same submits with and without an API token, in turns: both are in the audit log."""
    asked = {"name": "bench", "role": "operator"}  # of the own user: a second one needs isolation.users
    token = str(server.post("/api/v1/tokens", asked)["token"])
    seconds = {"": 0.0, token: 0.0}
    for _ in range(TOKEN_ROUNDS):
        for given in seconds:
            seconds[given] += server.load("single", SINGLE_SUBMITS // TOKEN_ROUNDS, token=given)["seconds"]
    return {
        "figure": "rate of submits with a token, to that without",
        "value": round(seconds[""] / seconds[token], 2),
        "unit": "ratio",
        "aim": 0.9,
        "with_token_per_s": round(SINGLE_SUBMITS / seconds[token]),
    }


def with_variables(server: Server) -> Iterator[dict[str, Any]]:
    """Their values are encrypted. CPU time of the scheduler, in turns: other programs disturb it less than a rate."""
    seconds = {"single": 0.0, "variables": 0.0, "distinct": 0.0}
    for _ in range(VARIABLE_ROUNDS):
        for kind in seconds:
            before = server.cpu_seconds()
            server.load(kind, VARIABLE_SUBMITS)
            seconds[kind] += server.cpu_seconds() - before
    for kind, which in (("variables", "the same variables"), ("distinct", "other variables each")):
        yield {
            "figure": f"CPU time of a submit with {which}, against none",
            "value": round(seconds[kind] / seconds["single"], 2),
            "unit": "x",
            "microseconds": round(seconds[kind] / (VARIABLE_ROUNDS * VARIABLE_SUBMITS) * 1e6),
        }


def bulk(server: Server) -> dict[str, Any]:
    took = server.load("bulk", BULK_TASKS)
    return {
        "figure": "durable bulk submits",
        "value": round(BULK_TASKS / took["seconds"]),
        "unit": "1/s",
        "aim": 50_000,
        "part": PART["bulk"],
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
        yield time_of(server, name, path, aim=None if "1000" in name else 10)
    yield time_of(server, "why of the last", f"/api/v1/tasks/{1_000 + WAITING}/why", aim=20)
    began = time.perf_counter()
    cancelled = server.post("/api/v1/tasks/cancel", {"status": "pending"})["cancelled"]
    yield {
        "figure": "cancel all",
        "value": round(time.perf_counter() - began, 3),
        "unit": "s",
        "aim": 0.5,
        "tasks": cancelled,
    }


def time_of(server: Server, name: str, path: str, aim: float | None) -> dict[str, Any]:
    """The worst one with the CPU time of the scheduler meanwhile: a stall without it is the machine's, not ours."""
    took = []
    for _ in range(PAGES):
        cpu_s, began = server.cpu_seconds(), time.perf_counter()
        server.get(path)
        took.append(((time.perf_counter() - began) * 1000, (server.cpu_seconds() - cpu_s) * 1000))
    worst_ms, cpu_ms = max(took)
    return {
        "figure": f"{name}, {WAITING:,} waiting",
        "value": round(median(ms for ms, _ in took), 2),
        "unit": "ms",
        "aim": aim,
        "worst_ms": round(worst_ms, 2),
        "worst_cpu_ms": round(cpu_ms),
    }


if __name__ == "__main__":
    for line in run():
        print(json.dumps(line), flush=True)
