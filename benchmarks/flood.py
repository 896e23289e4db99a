"""A tenant that floods the scheduler with submits, and another tenant that submits one task after the other.

Both use API tokens. The figure is how much longer the calm tenant waits than without the flood, in the same run.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from _cluster import Server, scheduler
from _load import Asker, request_of, task_of

ROUNDS = 5
ROUND_SECONDS = 3.0
FLOOD_CONNECTIONS = 64


def run() -> Iterator[dict[str, Any]]:
    with scheduler("isolation: {users: none}") as server:
        calm, flood = token(server, "calm"), token(server, "flood")
        calm_client(server, calm, 1.0)  # warm
        quiet: list[float] = []
        busy: list[float] = []
        floods = 0
        for _ in range(ROUNDS):
            quiet += calm_client(server, calm, ROUND_SECONDS)
            with subprocess.Popen(
                command(server, flood, FLOOD_CONNECTIONS, ROUND_SECONDS + 1.0), stdout=subprocess.PIPE
            ) as flooding:
                time.sleep(0.5)
                busy += calm_client(server, calm, ROUND_SECONDS)
                floods += int(flooding.communicate()[0])
    for share in (50, 99):
        before, during = percentile(quiet, share), percentile(busy, share)
        yield {
            "figure": f"p{share} of a submit while another tenant floods, against none",
            "value": round(during / before, 2),
            "unit": "x",
            "aim": 2,
            "quiet_ms": round(before, 2),
            "flooded_ms": round(during, 2),
            "flood_per_s": round(floods / ROUNDS / (ROUND_SECONDS + 1.0)),
            "connections": FLOOD_CONNECTIONS,
        }


def token(server: Server, tenant: str) -> str:
    body = {"name": tenant, "user": tenant, "tenants": [tenant], "role": "user"}
    return str(server.post("/api/v1/tokens", body)["token"])


def percentile(took_ms: list[float], share: int) -> float:
    return sorted(took_ms)[len(took_ms) * share // 100]


def calm_client(server: Server, secret: str, seconds: float) -> list[float]:
    done = subprocess.run(
        command(server, secret, 1, seconds), stdout=subprocess.PIPE, check=True, timeout=120
    )
    took_ms: list[float] = json.loads(done.stdout)
    return took_ms


def command(server: Server, secret: str, connections: int, seconds: float) -> list[str]:
    this = str(Path(__file__))
    return [sys.executable, this, str(server.http_port), secret, str(connections), str(seconds)]


async def ask(port: int, secret: str, connections: int, seconds: float) -> list[float]:
    until = time.monotonic() + seconds
    headers = f"Authorization: Bearer {secret}\r\n"

    def requests() -> Iterator[bytes]:
        for number in itertools.count():
            if time.monotonic() >= until:
                return
            yield request_of("/api/v1/tasks", json.dumps(task_of(number, "")).encode(), headers)

    loop = asyncio.get_running_loop()
    took: list[float] = []
    left = requests()
    ends = []
    for _ in range(connections):
        end: asyncio.Future[None] = loop.create_future()
        ends.append(end)
        await loop.create_connection(lambda end=end: Asker(left, end, took), "127.0.0.1", port)
    await asyncio.gather(*ends)
    return took


def main() -> None:
    import uvloop

    port, secret, connections, seconds = sys.argv[1:]
    took = uvloop.run(ask(int(port), secret, int(connections), float(seconds)))
    print(len(took) if int(connections) > 1 else json.dumps([round(each * 1000, 2) for each in took]))


if __name__ == "__main__":
    main()
