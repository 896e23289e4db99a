"""Calls for monitoring: the metrics for Prometheus, and a short form of them as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from litestar import Response, get

from dgpu.core.index.limits import quota_of
from dgpu.core.model.ids import GpuId
from dgpu.core.model.node import GpuStatus, NodeStatus
from dgpu.core.model.task import WHOLE_MILLI, Pool, TaskStatus
from dgpu.core.rules.admission import used_milli
from dgpu.core.state import ClusterState, gpu_status
from dgpu.service.access.principal import Tenants
from dgpu.service.machine.agent_words import GpuSample
from dgpu.service.metrics.cluster import tenant_loads
from dgpu.service.metrics.meters import Histogram, Meters
from dgpu.service.metrics.text import CONTENT_TYPE
from dgpu.service.rest.backend import Backend
from dgpu.service.rest.tasks import Given, Who
from dgpu.wire.answers import instant
from dgpu.wire.monitor import (
    MonitorAnswer,
    MonitorGpus,
    MonitorPool,
    MonitorTasks,
    MonitorTenant,
    MonitorWait,
)


@get(
    "/metrics",
    summary="Metrics for Prometheus",
    description="In the text format 0.0.4: the queue, waits, GPUs, pools, tenants, and the scheduler itself. "
    "No label names a task. Counters start at 0 with every start of the scheduler. Only tenants of the "
    "reader have a label.",
    media_type=CONTENT_TYPE.decode(),
)
async def metrics(rest: Given, who: Who) -> Response[bytes]:
    """Only for the description: the front answers this call."""
    return Response(await rest.scrapes.answer(who), media_type=CONTENT_TYPE.decode())


@get(
    "/api/monitor/metrics",
    summary="Summary of the cluster (workstation form)",
    description="The content of /metrics as one JSON object without histograms.",
)
async def monitor(rest: Given, who: Who) -> MonitorAnswer:
    return await rest.runtime.read(lambda state: _answer(rest, state, who.tenants))


def _answer(rest: Backend, state: ClusterState, tenants: Tenants) -> MonitorAnswer:
    meters, at = rest.runtime.meters, rest.runtime.now_ms()
    agents = {status.value: 0 for status in NodeStatus}
    for node in state.nodes.values():
        agents[node.status.value] += 1
    return MonitorAnswer(
        at=instant(at),
        role=rest.options.role,
        epoch=state.epoch,
        gpus=_gpus(state, rest.runtime.telemetry),
        tasks=_tasks(state, meters),
        wait_seconds=_wait(meters),
        online=_pool(state, Pool.ONLINE),
        batch=_pool(state, Pool.BATCH),
        agents=agents,
        tenants=[
            MonitorTenant(
                tenant_id=load.tenant_id,
                gpus_used=load.gpus_used,
                running=load.running,
                waiting=load.waiting,
                gpu_hours_this_month=load.gpu_hours,
            )
            for load in tenant_loads(state, rest.views.counts(), at, tenants)
        ],
    )


def _gpus(state: ClusterState, telemetry: Mapping[GpuId, GpuSample]) -> MonitorGpus:
    samples = [
        sample
        for gpu_id, sample in telemetry.items()
        if (gpu := state.gpus.get(gpu_id)) and gpu_status(state, gpu) is not GpuStatus.OFFLINE
    ]
    counts = state.gpu_counts()
    load = _told(sample.utilization_percent for sample in samples)
    used = _told(sample.memory_used_mb for sample in samples)
    heat = _told(sample.temperature_c for sample in samples)
    power = _told(sample.power_w for sample in samples)
    return MonitorGpus(
        total=sum(counts.values()),
        **{status.value: number for status, number in counts.items()},
        utilization_percent=sum(load) / len(load) if load else None,
        memory_total_mb=sum(gpu.memory_mb for gpu in state.gpus.values()),
        memory_used_mb=sum(used) if used else None,
        temperature_max_c=max(heat, default=None),
        power_w=sum(power) if power else None,
    )


def _told(values: Iterable[int | None]) -> list[int]:
    """A GPU without the sensor neither lowers a mean nor adds to a sum."""
    return [value for value in values if value is not None]


def _tasks(state: ClusterState, meters: Meters) -> MonitorTasks:
    return MonitorTasks(
        pending=state.waiting_count,
        running=state.running_count,
        submitted=sum(meters.submitted.values()),
        scheduled=sum(meters.scheduled.values()),
        success=meters.finished[TaskStatus.SUCCESS],
        failed=meters.finished[TaskStatus.FAILED],
        cancelled=meters.finished[TaskStatus.CANCELLED],
        requeued=sum(meters.requeued.values()),
    )


def _wait(meters: Meters) -> MonitorWait:
    both = Histogram(meters.wait[Pool.ONLINE].bounds)
    for known in meters.wait.values():
        both.counts = [a + b for a, b in zip(both.counts, known.counts, strict=True)]
        both.total += known.total
    mean = both.total / both.count if both.count else None
    return MonitorWait(count=both.count, mean=mean, p50=both.quantile(0.5), p95=both.quantile(0.95))


def _pool(state: ClusterState, pool: Pool) -> MonitorPool:
    limit = quota_of(state).milli(pool) / WHOLE_MILLI
    return MonitorPool(limit=limit, used=used_milli(state, pool) / WHOLE_MILLI)


ROUTES: tuple[Any, ...] = (metrics, monitor)
