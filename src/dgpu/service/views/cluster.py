"""Nodes and GPUs as responses: facts of the core, plus the latest samples, which the core never sees."""

from __future__ import annotations

from collections.abc import Mapping

from dgpu.core.index.cards import usable_mb
from dgpu.core.model.health import Health
from dgpu.core.model.ids import GpuId, NodeId, task_name
from dgpu.core.model.node import Gpu, GpuStatus, Node
from dgpu.core.model.task import WHOLE_MILLI
from dgpu.core.state import ClusterState, gpu_status
from dgpu.service.machine.agent_words import GpuSample
from dgpu.wire.answers import instant_or_none
from dgpu.wire.cluster_answers import GpuAnswer, GpuHealthAnswer, GpuList, NodeAnswer, NodeList
from dgpu.wire.isolation import FEATURES


def gpu_list(
    state: ClusterState, telemetry: Mapping[GpuId, GpuSample], node_id: NodeId | None = None
) -> GpuList:
    """Sorted by node, then by index; only one node, if given."""
    node_ids = sorted(state.nodes) if node_id is None else [node_id]
    gpus = [
        _gpu_answer(state, gpu, telemetry.get(gpu.id))
        for node_id in node_ids
        for gpu in state.node_gpus(node_id)
    ]
    numbers = dict.fromkeys(GpuStatus, 0)
    for gpu in gpus:
        numbers[GpuStatus(gpu.status)] += 1
    return GpuList(total=len(gpus), gpus=gpus, **{status.value: number for status, number in numbers.items()})


def one_gpu(state: ClusterState, gpu_id: GpuId, telemetry: Mapping[GpuId, GpuSample]) -> GpuAnswer | None:
    gpu = state.gpus.get(gpu_id)
    return None if gpu is None else _gpu_answer(state, gpu, telemetry.get(gpu_id))


def _gpu_answer(state: ClusterState, gpu: Gpu, sample: GpuSample | None) -> GpuAnswer:
    leases = state.gpu_leases(gpu.id)
    usable = usable_mb(gpu, state.settings)
    shared = all(lease.share_milli < WHOLE_MILLI for lease in leases)
    held = sum(lease.share_milli for lease in leases)
    status = gpu_status(state, gpu)
    if status is GpuStatus.OFFLINE:
        sample = None  # samples from before the loss say nothing about the present
    return GpuAnswer(
        id=gpu.id,
        node=gpu.node_id,
        index=gpu.index,
        uuid=gpu.id,
        model=gpu.model,
        memory_total_mb=gpu.memory_mb,
        memory_used_mb=sample.memory_used_mb if sample else None,
        memory_foreign_mb=gpu.foreign_mb
        if sample is None or sample.memory_foreign_mb is None
        else sample.memory_foreign_mb,
        memory_reserved_mb=sum(lease.gpu_memory_mb for lease in leases) if shared else usable,
        memory_usable_mb=usable,
        share_free=max(0, WHOLE_MILLI - held) / WHOLE_MILLI,
        utilization_percent=sample.utilization_percent if sample else None,
        temperature_c=sample.temperature_c if sample else None,
        power_w=sample.power_w if sample else None,
        status=status.value,
        fault=gpu.fault,
        health=gpu_health(state, gpu),
        tasks=[task_name(lease.task_id) for lease in leases],
        loaded_models=list(gpu.warm),
    )


def gpu_health(state: ClusterState, gpu: Gpu) -> GpuHealthAnswer:
    known = state.health.get(gpu.id)
    if known is None:
        return GpuHealthAnswer()
    return GpuHealthAnswer(
        state=known.state.value,
        since=instant_or_none(known.since),
        cause=known.cause,
        evidence=known.evidence,
        remark=known.remark,
        quarantines=known.quarantines,
        good_runs=known.good_runs,
        needs_person=known.state is Health.OUT,
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
        tasks=(tasks := [task_name(lease.task_id) for lease in state.node_leases(node.id)]),
        running=len(tasks),
        labels=node.labels,
        registered_at=instant_or_none(node.registered_at),
        offline_since=instant_or_none(node.offline_since),
        unconfirmed_since=instant_or_none(node.unconfirmed_since),
        draining=node.draining,
        drain_reason=node.drain_reason,
        enforced=list(node.enforced),
        not_enforced=[name for name in FEATURES if name not in node.enforced],
        not_isolated=node.not_isolated,
        loaded_models=sorted({name for gpu in gpus for name in gpu.warm}),
    )
