"""What open dashboards cost: the same load with none and with fifty, in turns, in one run.

1,600 simulated GPUs that report every five seconds, and 10,000 tasks in each round. The browsers are raw streams read
by a process of their own; on a machine of few cores they take their part of it too. The same number of browsers is also
measured with users of one tenant and of four.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from _browsers import TOKENS
from _cluster import Server, agent_host, scheduler
from drain import ALL_GPUS, drain

from dgpu.core.commands import RegisterNode
from dgpu.core.execute import execute
from dgpu.core.model.ids import GpuId, NodeId
from dgpu.core.model.node import Gpu
from dgpu.core.state import ClusterState
from dgpu.journal.journal import Room
from dgpu.service.access.audiences import MAX_AUDIENCES
from dgpu.service.board.board import Board
from dgpu.service.machine.agent_words import GpuSample
from dgpu.service.views.views import Views

NODES = 200
BROWSERS = 50
AUDIENCES = 4
TASKS = 10_000
SUBMITS = 10_000
ROUNDS = 3
QUIET_SECONDS = 20.0
SETTLE_SECONDS = 10.0
ENCODED_BEATS = 20
OPENER = Path(__file__).with_name("_browsers.py")


def run() -> Iterator[dict[str, Any]]:
    with (
        scheduler(f"{ALL_GPUS}\nisolation: {{users: none}}") as server,
        agent_host(server, nodes=NODES, method="simulated"),
    ):
        drain(server, "bulk", 2_000, "true")  # warm
        yield from quiet(server)
        yield from audiences(server)
        yield from loaded(server)
    yield from encoding()


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


def audiences(server: Server) -> Iterator[dict[str, Any]]:
    """Users of the same tenants share what is encoded. Tasks of four tenants come and go, the same in each round."""
    tenants = [f"tenant-{number}" for number in range(AUDIENCES)]
    tokens = [tenant_token(server, tenant) for tenant in tenants]
    used: dict[int, list[float]] = {0: [], 1: [], AUDIENCES: []}
    for _ in range(ROUNDS):
        for number, took in used.items():
            with browsers(server, BROWSERS, tokens[:number]) if number else contextlib.nullcontext():
                took.append(churn(server, tenants))
    alone, one, many = (median(took) / QUIET_SECONDS * 1_000 for took in used.values())
    for number, cost in ((1, one), (AUDIENCES, many)):
        yield {
            "figure": f"server CPU per browser and second, {BROWSERS} open, tasks come and go, audiences: {number}",
            "value": round((cost - alone) / BROWSERS, 2),
            "unit": "ms",
            "aim": 1,
            "alone_ms": round(alone, 1),
            "together_ms": round(cost - alone, 1),
            "per_more_audience_ms": round((many - one) / (AUDIENCES - 1), 1),
        }


def churn(server: Server, tenants: Sequence[str]) -> float:
    """CPU time of the scheduler while a quarter of the GPUs gets a short task every second."""
    before = server.cpu_seconds()
    for second in range(int(QUIET_SECONDS)):
        ends_s = time.monotonic() + 1.0
        task = {"command": "true", "gpu_count": 1, "tenant_id": tenants[second % len(tenants)]}
        server.post("/api/v1/tasks/batch", {"task": task, "count": NODES * 2})
        time.sleep(max(0.0, ends_s - time.monotonic()))
    return server.cpu_seconds() - before


def encoding() -> Iterator[dict[str, Any]]:
    """The worst second: every GPU has a new sample. All audiences in one process, without the network."""
    beats = {number: asyncio.run(beat_ms(number)) for number in (1, AUDIENCES, MAX_AUDIENCES)}
    for number, took_ms in beats.items():
        yield {
            "figure": f"CPU of a beat in which all {NODES * 8} GPUs change, audiences: {number}",
            "value": round(took_ms, 2),
            "unit": "ms",
            "per_audience_ms": round((took_ms - beats[1]) / (number - 1), 2) if number > 1 else None,
        }


async def beat_ms(number: int) -> float:
    state = ClusterState()
    for node in range(NODES):
        name = NodeId(f"n{node}")
        cards = tuple(
            Gpu(id=GpuId(f"GPU-{node}-{index}"), node_id=name, index=index, model="A100", memory_mb=81_920)
            for index in range(8)
        )
        execute(state, RegisterNode(node_id=name, boot_id="b", cpus_milli=1_000, ram_mb=1_000, gpus=cards))
    runtime = StandIn(state)
    board = Board(runtime, Views(state))  # type: ignore[arg-type]
    listeners = [(await board.join((f"tenant-{each}",)))[0] for each in range(number)]
    took: list[float] = []
    for _ in range(ENCODED_BEATS):
        runtime.new_samples()
        began = time.process_time()
        await board.beat()
        for listener in listeners:
            assert board.take(listener)[0].packed
        took.append((time.process_time() - began) * 1_000)
    return median(took)


class StandIn:
    """What the board uses of a runtime. Its clock goes a second for each sample."""

    ready, trouble, room = True, "", Room.OK

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._at_ms = 1_000_000
        self._random = random.Random(7)
        self.telemetry: dict[GpuId, GpuSample] = {}

    def now_ms(self) -> int:
        return self._at_ms

    async def read(self, look: Callable[[ClusterState], Any]) -> Any:
        return look(self._state)

    def new_samples(self) -> None:
        self._at_ms += 1_000
        for gpu_id in self._state.gpus:
            wobble = self._random.randrange(50)
            self.telemetry[gpu_id] = GpuSample(
                at=self._at_ms,
                utilization_percent=50 + wobble,
                memory_used_mb=40_000 + wobble,
                temperature_c=40 + self._random.randrange(40),
                power_w=200 + self._random.randrange(200),
            )


def tenant_token(server: Server, tenant: str) -> str:
    asked = {"name": tenant, "user": tenant, "tenants": [tenant], "role": "user"}
    return str(server.post("/api/v1/tokens", asked)["token"])


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
def browsers(server: Server, number: int, tokens: Sequence[str] = ()) -> Iterator[dict[str, int]]:
    """What they counted is in it afterwards."""
    command = [sys.executable, str(OPENER), str(server.http_port), str(number)]
    counted: dict[str, int] = {}
    environment = {**os.environ, TOKENS: ",".join(tokens)}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        if process.stdout.readline().strip() != "ready":
            raise SystemExit("the browsers did not open")
        try:
            yield counted
        finally:
            process.stdin.close()
            counted.update(json.loads(process.stdout.readline() or "{}"))
