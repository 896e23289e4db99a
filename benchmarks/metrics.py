"""GET /metrics of a real scheduler process, and our text against that of prometheus-client, in one process."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

from _cluster import Server, agent_host, scheduler

from dgpu.core.apply.table import apply
from dgpu.core.events import NodeRegistered
from dgpu.core.model.ids import GpuId, NodeId
from dgpu.core.model.node import Gpu, Node
from dgpu.core.state import ClusterState
from dgpu.service.machine.agent_words import GpuSample
from dgpu.service.metrics.gpu import FAMILIES, GpuLines, tell_families
from dgpu.service.metrics.text import Text

SCRAPES = 20
AIM_MS = 30
SIZES = ((200, 8, AIM_MS), (250, 64, None))


def run() -> Iterator[dict[str, Any]]:
    yield from ratio(nodes=200, gpus=8)
    for nodes, gpus, aim in SIZES:
        with scheduler() as server, agent_host(server, nodes=nodes, cards=f"{gpus}xV100", method="simulated"):
            server.post("/api/v1/tasks/batch", {"task": {"command": "true", "gpu_count": 1}, "count": 1_000})
            wait_for_samples(server, nodes * gpus)
            yield scrape(server, nodes * gpus, aim)


def scrape(server: Server, gpus: int, aim: float | None) -> dict[str, Any]:
    took = []
    before = server.cpu_seconds()
    for _ in range(SCRAPES):
        began = time.perf_counter()
        content = ask(server)
        took.append((time.perf_counter() - began) * 1_000)
    samples = sum(not line.startswith(b"#") for line in content.splitlines())
    return {
        "figure": f"scrape of {gpus:,} GPUs",
        "value": round(median(took), 1),
        "unit": "ms",
        "aim": aim,
        "worst_ms": round(max(took), 1),
        "cpu_ms": round((server.cpu_seconds() - before) * 1_000 / SCRAPES, 1),
        "samples": samples,
        "kilobytes": len(content) // 1_000,
    }


def ratio(nodes: int, gpus: int) -> Iterator[dict[str, Any]]:
    """The same samples of the same GPUs, each way of writing them in turns."""
    state, telemetry = cluster(nodes, gpus)
    ids = list(state.gpus)
    lines = GpuLines()

    def ours() -> bytes:
        text = Text()
        tell_families(text, [lines.of(state, ids, telemetry, {})])
        return text.encode()

    yield {
        "figure": f"text of {len(ids):,} GPUs, ours",
        "value": round(best_ms(ours), 1),
        "unit": "ms",
        "samples": len(ids) * len(FAMILIES),
    }
    try:
        import prometheus_client  # noqa: F401 - a library of the tests
    except ImportError:
        return
    theirs = of_prometheus_client(state, telemetry)
    mine_ms, their_ms = best_ms(ours), best_ms(theirs)
    yield {
        "figure": f"text of {len(ids):,} GPUs, prometheus-client (a collector)",
        "value": round(their_ms, 1),
        "unit": "ms",
        "times_ours": round(their_ms / mine_ms, 1),
    }


def of_prometheus_client(state: ClusterState, telemetry: dict[GpuId, GpuSample]) -> Callable[[], bytes]:
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    names = ["gpu_id", "model", "node", "index"]
    kinds = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily}

    class Collector:
        def collect(self) -> Iterator[Any]:
            for number, (name, kind, about) in enumerate(FAMILIES):
                family = kinds[kind](name, about, labels=names)
                for gpu in state.gpus.values():
                    sample = telemetry[gpu.id]
                    value = gpu.memory_mb if number > 5 else sample.utilization_percent
                    family.add_metric([gpu.id, gpu.model, gpu.node_id, str(gpu.index)], value)
                yield family

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Collector())
    return lambda: generate_latest(registry)


def cluster(nodes: int, gpus: int) -> tuple[ClusterState, dict[GpuId, GpuSample]]:
    state = ClusterState()
    for number in range(nodes):
        node_id = NodeId(f"node-{number}")
        cards = tuple(
            Gpu(
                id=GpuId(f"GPU-{number:04x}-{index:04x}-aaaa-bbbb-0123456789ab"),
                node_id=node_id,
                index=index,
                model="Tesla V100-SXM2-32GB",
                memory_mb=32_768,
            )
            for index in range(gpus)
        )
        apply(state, NodeRegistered(at=1, node=Node(id=node_id, boot_id="b", registered_at=1), gpus=cards))
    telemetry = {
        gpu_id: GpuSample(at=1, utilization_percent=57, memory_used_mb=4_711, temperature_c=61, power_w=250)
        for gpu_id in state.gpus
    }
    return state, telemetry


def best_ms(work: Callable[[], bytes]) -> float:
    took = []
    for _ in range(10):
        began = time.perf_counter()
        work()
        took.append((time.perf_counter() - began) * 1_000)
    return min(took)


def ask(server: Server) -> bytes:
    server._connection.request("GET", "/metrics")
    return server._connection.getresponse().read()


def wait_for_samples(server: Server, gpus: int) -> None:
    while ask(server).count(b"\ngpu_utilization{") < gpus:
        time.sleep(0.5)


if __name__ == "__main__":
    for line in run():
        print(json.dumps(line), flush=True)
