"""Applies events to the health of GPUs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from dgpu.core.apply.calls import note_worker_leaves
from dgpu.core.events import GpuBlamed, GpuHealthChanged, GpuRunSucceeded, TaskStopRequested
from dgpu.core.model.health import GpuHealth, Health, lasts
from dgpu.core.model.ids import NO_TASK, GpuId, NodeId
from dgpu.core.model.lease import Lease
from dgpu.core.model.node import Gpu
from dgpu.core.rules.reclaim import RECLAIMED
from dgpu.core.state import NOT_COMPUTED, ClusterState


def apply_health(state: ClusterState, event: GpuHealthChanged) -> None:
    known = state.health.get(event.gpu_id) or GpuHealth(gpu_id=event.gpu_id, node_id=event.node_id)
    gpu = state.gpus.get(event.gpu_id)
    changed = replace(
        known,
        node_id=event.node_id,
        state=event.after,
        since=event.at,
        remark=event.evidence,
        quarantines=event.quarantines,
        checks=event.checks,
        good_runs=0,
        clear_since=0,
    )
    if event.after is Health.QUARANTINED:
        still = gpu is None or gpu.gone or lasts(gpu.fault, gpu.fault_cause)
        changed = replace(
            changed,
            cause=event.cause,
            evidence=event.evidence,
            quarantined_at=event.at,
            clear_since=0 if still else event.at,
            blames=(),
        )
    state.health[event.gpu_id] = changed
    state.health_at = NOT_COMPUTED
    if gpu is not None:
        change_gpu(state, gpu.id, health=event.after)


def change_gpu(state: ClusterState, gpu_id: GpuId, **facts: Any) -> Gpu:
    gpu = state.gpus[gpu_id] = replace(state.gpus[gpu_id], **facts)
    state.rooms.refresh(gpu.node_id)
    return gpu


def apply_blamed(state: ClusterState, event: GpuBlamed) -> None:
    known = state.health.get(event.gpu_id) or GpuHealth(gpu_id=event.gpu_id, node_id=event.node_id)
    most = max(1, state.settings.health.failures_in_a_row)
    state.health[event.gpu_id] = replace(known, blames=(*known.blames, event.blame)[-most:])


def apply_run_succeeded(state: ClusterState, event: GpuRunSucceeded) -> None:
    known = state.health[event.gpu_id]
    good_runs = known.good_runs + 1 if known.state is Health.PAROLE else 0
    state.health[event.gpu_id] = replace(known, blames=(), good_runs=good_runs)


def apply_stop_requested(state: ClusterState, event: TaskStopRequested) -> None:
    lease = state.leases[event.lease_id]
    returns_quota = event.task_id not in state.workers or event.reason == RECLAIMED
    stop_for = event.for_task if returns_quota else NO_TASK
    state.leases[lease.id] = replace(lease, stopping=event.reason, stop_for=stop_for)
    if lease.worker:
        return
    if event.task_id in state.workers:
        note_worker_leaves(state, event.task_id)
    state.hasten((lease.id,))
    if stop_for:
        state.reclaims[lease.id] = stop_for


def note_listed(state: ClusterState, node_id: NodeId, listed: Iterable[Gpu], at: int) -> list[Gpu]:
    """A node reported its list of GPUs: each GPU keeps its health, also in another node."""
    state.health_at = NOT_COMPUTED
    found = []
    for gpu in listed:
        known = state.health.get(gpu.id)
        if known is None:
            found.append(gpu)
            continue
        if known.state is Health.PROBING:
            # The check is requested again with the welcome: its time counts from now.
            known = replace(known, since=at)
        state.health[gpu.id] = replace(_clearing(known, gpu, at), node_id=node_id)
        found.append(replace(gpu, health=known.state))
    return found


def note_observed(state: ClusterState, gpu: Gpu, at: int) -> None:
    known = state.health.get(gpu.id)
    if known is not None:
        state.health[gpu.id] = _clearing(known, gpu, at)
        state.health_at = NOT_COMPUTED


def note_freed(state: ClusterState, lease: Lease) -> None:
    """The last task on a GPU that is out of service may have ended: the GPU can be checked now."""
    if state.health and any(
        (known := state.health.get(gpu_id)) is not None and not known.serves for gpu_id in lease.gpu_ids
    ):
        state.health_at = NOT_COMPUTED


def forget_node(state: ClusterState, node_id: NodeId) -> None:
    gone = [gpu_id for gpu_id, known in state.health.items() if known.node_id == node_id]
    for gpu_id in gone:
        del state.health[gpu_id]
    state.health_at = NOT_COMPUTED


def _clearing(known: GpuHealth, gpu: Gpu, at: int) -> GpuHealth:
    if known.state is not Health.QUARANTINED:
        return known
    if lasts(gpu.fault, gpu.fault_cause):
        return replace(known, clear_since=0)
    return known if known.clear_since else replace(known, clear_since=at)
