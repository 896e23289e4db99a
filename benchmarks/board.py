"""What open dashboards cost: the same load with none and with fifty, in turns, in one run.

1,600 simulated GPUs that report every five seconds, and 10,000 tasks in each round. The browsers are raw streams read
by a process of their own; on a machine of few cores they take their part of it too.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from _cluster import Server, agent_host, scheduler
from drain import ALL_GPUS, drain

NODES = 200
BROWSERS = 50
TASKS = 10_000
SUBMITS = 10_000
ROUNDS = 3
QUIET_SECONDS = 20.0
SETTLE_SECONDS = 10.0
OPENER = Path(__file__).with_name("_browsers.py")


def run() -> Iterator[dict[str, Any]]:
    with scheduler(ALL_GPUS) as server, agent_host(server, nodes=NODES, method="simulated"):
        drain(server, "bulk", 2_000, "true")  # warm
        yield from quiet(server)
        yield from loaded(server)


def quiet(server: Server) -> Iterator[dict[str, Any]]:
    """Nothing runs: what is used beyond the times without browsers before and after is theirs."""
    time.sleep(SETTLE_SECONDS)
    before = cpu_of(server, QUIET_SECONDS)
    for number in (1, BROWSERS):
        with browsers(server, number) as counted:
            used = cpu_of(server, QUIET_SECONDS)
        after = cpu_of(server, QUIET_SECONDS)
        alone = (before + after) / 2
        yield {
            "figure": f"server CPU per browser and second, {number} open, {NODES * 8} GPUs",
            "value": round((used - alone) / QUIET_SECONDS / number * 1_000, 2),
            "unit": "ms",
            "aim": 1,
            "alone_ms": round(alone / QUIET_SECONDS * 1_000, 1),
            "bytes_per_second": round(counted["read_bytes"] / QUIET_SECONDS / number),
        }
        before = after


def loaded(server: Server) -> Iterator[dict[str, Any]]:
    seen: dict[bool, list[dict[str, float]]] = {False: [], True: []}
    for _ in range(ROUNDS):
        for watched in (False, True):
            with browsers(server, BROWSERS) if watched else contextlib.nullcontext():
                seen[watched].append(one_round(server))
    for name, what, unit in (
        ("rate", "durable single submits", "1/s"),
        ("p99_ms", "p99 of a submit", "ms"),
        ("drained", "drain", "tasks/s"),
        ("decision_p99_ms", "decision p99", "ms"),
    ):
        without, with_them = (median(each[name] for each in seen[watched]) for watched in (False, True))
        if without > 0:
            yield {
                "figure": f"{what} with {BROWSERS} browsers",
                "value": round(with_them, 3),
                "unit": unit,
                "without": round(without, 3),
                "ratio": round(with_them / without, 3),
                "aim": "within 20 % of that without",
            }


def one_round(server: Server) -> dict[str, float]:
    drained = drain(server, "bulk", TASKS, "true")
    before = decisions(server)
    took = server.load("single", SUBMITS, "true")
    after = decisions(server)
    while server.total("pending") or server.total("running"):
        time.sleep(0.05)
    return {
        "drained": drained,
        "rate": SUBMITS / took["seconds"],
        "p99_ms": took["p99_ms"],
        "decision_p99_ms": quantile_ms(before, after, 0.99),
    }


def decisions(server: Server) -> dict[float, float]:
    """The histogram of decision times, by upper bound; empty where the scheduler does not tell."""
    found: dict[float, float] = {}
    server._connection.request("GET", "/metrics")
    for line in server._connection.getresponse().read().decode().splitlines():
        if line.startswith(("scheduler_decision_seconds_bucket", "dgpu_decision_seconds_bucket")):
            labels, _, value = line.rpartition(" ")
            bound = labels.partition('le="')[2].partition('"')[0]
            found[float(bound)] = found.get(float(bound), 0) + float(value)
    return found


def quantile_ms(before: dict[float, float], after: dict[float, float], part: float) -> float:
    """The upper bound of the bucket in which it lies."""
    counts = {bound: after[bound] - before.get(bound, 0) for bound in sorted(after)}
    total = counts.get(float("inf"), 0)
    return next((bound * 1_000 for bound, count in counts.items() if total and count >= part * total), 0.0)


def cpu_of(server: Server, seconds: float) -> float:
    before = server.cpu_seconds()
    time.sleep(seconds)
    return server.cpu_seconds() - before


@contextlib.contextmanager
def browsers(server: Server, number: int) -> Iterator[dict[str, int]]:
    """What they counted is in it afterwards."""
    command = [sys.executable, str(OPENER), str(server.http_port), str(number)]
    counted: dict[str, int] = {}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        if process.stdout.readline().strip() != "ready":
            raise SystemExit("the browsers did not open")
        try:
            yield counted
        finally:
            process.stdin.close()
            counted.update(json.loads(process.stdout.readline() or "{}"))
