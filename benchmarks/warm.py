"""Calls of two models in random order on four simulated GPUs that hold one model each: how many find theirs loaded.

The same calls twice, by the same scheduler and agent: once placed by dgpu on an app of four workers, once dealt in turn
to four apps of one worker each, which is round-robin.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator

from _cluster import agent_host, scheduler

GPUS = 4
WARM_UP = 100  # calls that are not counted
CALLS = 1_000
IN_FLIGHT = 8
SEED = 1
RULES = "quota: {mode: borrow, reclaim: wait}\nscheduler: {max_models_per_gpu: 1}"
STREAMS = {"equal shares": 0.5, "80 : 20": 0.8}  # of calls for the first model


def run() -> Iterator[dict]:
    import _warm

    from dgpu.functions.session import connect

    with scheduler(RULES) as server, agent_host(server, nodes=1, cards=f"{GPUS}xV100"):
        connect(f"http://127.0.0.1:{server.http_port}")
        both = [_warm.blue.with_options(max_workers=GPUS), _warm.red.with_options(max_workers=GPUS)]
        lanes = [
            [each.with_options(max_workers=1, env={"LANE": str(lane)}) for each in (_warm.blue, _warm.red)]
            for lane in range(GPUS)
        ]
        for name, share in STREAMS.items():
            chance = random.Random(SEED)
            stream = [chance.random() < share for _ in range(WARM_UP + CALLS)]
            for system, choose, aim in (
                ("dgpu", lambda _, first: both[first], 95),
                ("round-robin", lambda number, first: lanes[number % GPUS][first], None),
            ):
                hits, seconds = asyncio.run(measured(stream, choose))
                figure = {
                    "figure": f"warm hits, {name}, {system}",
                    "value": round(100 * hits / CALLS, 2),
                    "unit": "%",
                    "calls_per_second": round(CALLS / seconds),
                    "seed": SEED,
                }
                yield {**figure, "aim": aim} if aim else figure


async def measured(stream: list[bool], choose: Callable[[int, bool], object]) -> tuple[int, float]:
    """Hits and seconds after the warm-up."""
    await results_of(stream, choose, range(WARM_UP))
    begin = time.perf_counter()
    hits = await results_of(stream, choose, range(WARM_UP, len(stream)))
    return sum(hits), time.perf_counter() - begin


async def results_of(stream: list[bool], choose: Callable[[int, bool], object], numbers: range) -> list[bool]:
    """At most `IN_FLIGHT` calls at once, submitted in order."""
    left, hits = iter(numbers), []

    async def lane() -> None:
        for number in left:
            future = await choose(number, stream[number]).submit_async()
            hits.append(await future)

    await asyncio.gather(*(lane() for _ in range(IN_FLIGHT)))
    return hits
