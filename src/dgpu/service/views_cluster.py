"""Nodes and GPUs as answers: facts of the core, beside the latest samples that the core never sees."""

from __future__ import annotations

from collections.abc import Mapping

from dgpu.core.ids import GpuId, task_name
from dgpu.core.node import Gpu, GpuStatus, Node
from dgpu.core.state import ClusterState, gpu_status
from dgpu.service.agent_words import GpuSample
from dgpu.wire.answers import GpuAnswer, GpuList, NodeAnswer, NodeList, instant_or_none


def gpu_list(state: ClusterState, telemetry: Mapping[GpuId, GpuSample]) -> GpuList:
    """By node, then by index."""
    gpus = [
        _gpu_answer(state, gpu, telemetry.get(gpu.id))
        for node_id in sorted(state.nodes)
        for gpu in state.node_gpus(node_id)
    ]
    numbers = dict.fromkeys(GpuStatus, 0)
    for gpu in gpus:
        numbers[GpuStatus(gpu.status)] += 1
    return GpuList(total=len(gpus), gpus=gpus, **{status.value: number for status, number in numbers.items()})


def _gpu_answer(state: ClusterState, gpu: Gpu, sample: GpuSample | None) -> GpuAnswer:
    lease = state.gpu_lease(gpu.id)
    status = gpu_status(state, gpu)
    if status is GpuStatus.OFFLINE:
        sample = None  # what was measured before it was lost says nothing about now
    return GpuAnswer(
        id=gpu.id,
        node=gpu.node_id,
        index=gpu.index,
        uuid=gpu.id,
        model=gpu.model,
        memory_total_mb=gpu.memory_mb,
        memory_used_mb=sample.memory_used_mb if sample else None,
        memory_foreign_mb=sample.memory_foreign_mb if sample else gpu.foreign_mb,
        utilization_percent=sample.utilization_percent if sample else None,
        temperature_c=sample.temperature_c if sample else None,
        power_w=sample.power_w if sample else None,
        status=status.value,
        fault=gpu.fault,
        tasks=[task_name(lease.task_id)] if lease else [],
    )


def node_list(state: ClusterState) -> NodeList:
    nodes = [node_answer(state, state.nodes[node_id]) for node_id in sorted(state.nodes)]
    return NodeList(total=len(nodes), nodes=nodes)


def node_answer(state: ClusterState, node: Node) -> NodeAnswer:
    gpus = state.node_gpus(node.id)
    return NodeAnswer(
        id=node.id,
        status=node.status.value,
        address=node.address,
        agent_version=node.agent_version,
        gpus=len(gpus),
        gpus_free=sum(gpu_status(state, gpu) is GpuStatus.IDLE for gpu in gpus),
        gpu_models=sorted({gpu.model for gpu in gpus}),
        cpus=node.cpus_milli / 1000,
        ram_mb=node.ram_mb,
        tasks=[task_name(lease.task_id) for lease in state.node_leases(node.id)],
        labels=node.labels,
        registered_at=instant_or_none(node.registered_at),
        offline_since=instant_or_none(node.offline_since),
        draining=node.draining,
        drain_reason=node.drain_reason,
    )
