"""kill -9 after the last acknowledgement, then a new start: when does it serve again, and what is missing.

Times count from the exec of the new process, interpreter and imports included, to an answer of 200: `value` to the list
of tasks, `ready_s` to /ready. The sources are compiled by then, as those of an installed package are.
"""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from statistics import median
from typing import Any

from _cluster import ENVIRONMENT, Server, scheduler

ROUNDS = 3
CASES = (  # waiting, how they are submitted, aim in seconds
    (20_000, "single", 1),
    (100_000, "hundred", 5),
)
WAYS = {"single": "one request each", "hundred": "a hundred each"}
JOURNAL_ONLY = "scheduler: {snapshot_interval: 86400}"
IMPORTS = (  # up to the first answer
    "dgpu.cli.main",
    "dgpu.entry.config",
    "dgpu.entry.logs",
    "dgpu.service.server",
    "dgpu.service.grpc.server",
    "dgpu.service.rest.app",
    "dgpu.service.rest.protocol",
)
SNAPSHOTS = "scheduler: {snapshot_interval: 1}"  # so that the last one is about as old as in a long life


def run() -> Iterator[dict[str, Any]]:
    for number, kind, aim in CASES:
        with scheduler(JOURNAL_ONLY) as server:
            server.load(kind, number)
            yield recovered(server, number, aim, f"journal only, {WAYS[kind]}")
        with scheduler(SNAPSHOTS) as server:
            server.load(kind, number)
            wait_for_snapshot(server)
            server.load("hundred", 1_000)  # the newest are in the journal alone
            yield recovered(server, number + 1_000, aim, "snapshot and journal")


def recovered(server: Server, number: int, aim: float, how: str) -> dict[str, Any]:
    ready, listed, cpu, imports, lost = [], [], [], [], 0
    for _ in range(ROUNDS):
        server.kill()
        began = time.perf_counter()
        server.start()
        answer(server, "/ready", began)
        ready.append(time.perf_counter() - began)
        page = answer(server, "/api/v1/tasks?limit=1", began)
        listed.append(time.perf_counter() - began)
        cpu.append(server.cpu_seconds())
        lost = max(lost, number - page["total"])
        imports.append(imports_alone_s())
    return {
        "figure": f"kill -9 to serving again, {number:,} waiting, {how}",
        "value": round(median(listed), 3),
        "unit": "s",
        "aim": aim,
        "ready_s": round(median(ready), 3),
        "worst_s": round(max(listed), 3),
        "cpu_s": round(median(cpu), 3),
        "imports_alone_s": round(median(imports), 3),
        "lost": lost,
    }


def imports_alone_s() -> float:
    """The part that has nothing to do with how much waits, at the same moment: it tells a busy machine from
    slow code.
    """
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", f"import {', '.join(IMPORTS)}"], check=True, env=ENVIRONMENT)
    return time.perf_counter() - began


def answer(server: Server, path: str, began: float) -> dict[str, Any]:
    """Asked again and again as an impatient client does."""
    while time.perf_counter() - began < 120:
        link = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=60)
        try:
            link.request("GET", path)
            got = link.getresponse()
            content = got.read()
            if got.status == 200:
                return dict(json.loads(content))
        except (OSError, http.client.HTTPException):
            pass
        finally:
            link.close()
        time.sleep(0.002)
    raise SystemExit("it did not come back")


def wait_for_snapshot(server: Server) -> None:
    """Until one of the follower's holds the last task of the load."""
    path = server.folder / "state" / "snapshot.json"
    wanted = server.get("/api/v1/tasks?limit=1")["total"] + 1
    for _ in range(600):
        if path.exists() and json.loads(path.read_bytes())["state"]["next_task_id"] >= wanted:
            return
        time.sleep(0.1)
    raise SystemExit("the follower wrote no snapshot")


if __name__ == "__main__":
    for line in run():
        print(json.dumps(line), flush=True)
