"""Sends the latest sample of every GPU to the follower every ten seconds. In slices, so that the loop stays free."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from dgpu.core.index.cards import usable_mb
from dgpu.core.model.ids import GpuId, NodeId
from dgpu.core.model.node import Gpu
from dgpu.core.model.task import WHOLE_MILLI
from dgpu.core.state import ClusterState
from dgpu.service.loop.runtime import Runtime
from dgpu.service.machine.agent_words import GpuSample
from dgpu.service.telemetry.tiers import GPU_COLUMNS, RAW, Batch

_NODES_A_SLICE = 8
_MAX_GPUS = 65_535
_PAUSE_S = 0.002
_LEAST_FRESH_MS = 15_000


class BatchSink(Protocol):
    def record(self, batch: Batch) -> None: ...


async def record_for_ever(runtime: Runtime, sink: BatchSink, *, fresh_ms: int) -> None:
    """A sample older than `fresh_ms` says nothing about the present."""
    while True:
        now = runtime.now_ms()
        at = (now // RAW.step_ms + 1) * RAW.step_ms
        await asyncio.sleep((at - now) / 1_000)
        sink.record(await gather(runtime, at, fresh_ms=max(fresh_ms, _LEAST_FRESH_MS)))


async def gather(runtime: Runtime, at: int, *, fresh_ms: int) -> Batch:
    rows = _Rows(runtime.telemetry, at - fresh_ms)
    nodes = await runtime.read(lambda state: sorted(state.nodes))
    for start in range(0, len(nodes), _NODES_A_SLICE):
        part = nodes[start : start + _NODES_A_SLICE]
        await runtime.read(lambda state, part=part: rows.add(state, part))  # type: ignore[misc]
        await asyncio.sleep(_PAUSE_S)
    waiting, running = await runtime.read(lambda state: (state.waiting_count, state.running_count))
    return rows.batch(at, waiting, running)


class _Rows:
    def __init__(self, telemetry: dict[GpuId, GpuSample], oldest: int) -> None:
        self._telemetry = telemetry
        self._oldest = oldest
        self._gpus: list[str] = []
        self._nodes: list[str] = []
        self._rows: list[tuple[int | None, ...]] = []
        self._busy = 0
        self._total_mb = 0

    def add(self, state: ClusterState, node_ids: Sequence[NodeId]) -> None:
        for node_id in node_ids:
            node = state.nodes.get(node_id)
            if node is None or node.offline_since:
                continue
            for gpu in state.node_gpus(node_id):
                sample = self._telemetry.get(gpu.id)
                if sample is not None and sample.at >= self._oldest and len(self._gpus) < _MAX_GPUS:
                    self._add_one(state, gpu, sample)

    def _add_one(self, state: ClusterState, gpu: Gpu, sample: GpuSample) -> None:
        leases = state.gpu_leases(gpu.id)
        reserved_mb = 0
        if leases:
            shared = all(lease.share_milli < WHOLE_MILLI for lease in leases)
            reserved_mb = (
                sum(lease.gpu_memory_mb for lease in leases) if shared else usable_mb(gpu, state.settings)
            )
            self._busy += 1
        load = sample.utilization_percent
        self._gpus.append(gpu.id)
        self._nodes.append(gpu.node_id)
        self._total_mb += gpu.memory_mb
        self._rows.append(
            (
                None if load is None else load * 10,
                sample.memory_used_mb,
                reserved_mb,
                sample.memory_foreign_mb,
                sample.temperature_c,
                sample.power_w,
            )
        )

    def batch(self, at: int, waiting: int, running: int) -> Batch:
        columns = [list(column) for column in zip(*self._rows, strict=True)] or [[] for _ in GPU_COLUMNS]
        load, used, reserved, foreign, heat, power = (
            [value for value in column if value is not None] for column in columns
        )
        cluster: list[int | None] = [
            round(sum(load) / len(load)) if load else None,
            sum(used) if used else None,
            sum(reserved) if reserved else None,
            sum(foreign) if foreign else None,
            max(heat, default=None),
            sum(power) if power else None,
            self._total_mb,
            len(self._gpus),
            self._busy,
            waiting,
            running,
        ]
        return Batch(at=at, gpu_ids=self._gpus, node_ids=self._nodes, columns=columns, cluster=cluster)
