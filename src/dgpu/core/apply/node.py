"""Applies events to nodes, their GPUs and the scheduler's own settings."""

from __future__ import annotations

from msgspec.structs import replace

from dgpu.core.apply.calls import stir_calls_on
from dgpu.core.apply.health import change_gpu, forget_node, note_listed, note_observed
from dgpu.core.apply.holdings import adopt_settings
from dgpu.core.apply.reservation import forget_reservations_on
from dgpu.core.events import (
    EpochBegan,
    InventoryChanged,
    NodeDraining,
    NodeLost,
    NodeRegistered,
    NodeRemoved,
    NodeResumed,
    ObservationChanged,
)
from dgpu.core.identity import identify
from dgpu.core.model.ids import NodeId
from dgpu.core.model.node import Gpu
from dgpu.core.state import NOT_COMPUTED, ClusterState


def apply_epoch(state: ClusterState, event: EpochBegan) -> None:
    adopt_settings(state, event)
    state.epoch = event.epoch
    state.no_pass_before = event.no_pass_before
    if event.nonce:
        identify(state, event)
    state.settings = event.settings
    if event.unconfirms:
        _unconfirm(state, event.at)
    state.rooms.configure(event.settings)
    state.queue.age_by(event.settings.ageing_ms)
    state.bookings.reorder()
    state.stirred = True
    state.fits_empty.clear()
    state.health_at = NOT_COMPUTED


def apply_registered(state: ClusterState, event: NodeRegistered) -> None:
    state.nodes[event.node.id] = event.node
    _list_gpus(state, event.node.id, event.gpus, event.at)


def apply_inventory(state: ClusterState, event: InventoryChanged) -> None:
    _list_gpus(state, event.node_id, event.gpus, event.at)


def apply_observation(state: ClusterState, event: ObservationChanged) -> None:
    gpu = change_gpu(
        state,
        event.gpu_id,
        foreign_mb=event.foreign_mb,
        fault=event.fault,
        fault_cause=event.fault_cause,
    )
    note_observed(state, gpu, event.at)


def apply_lost(state: ClusterState, event: NodeLost) -> None:
    stir_calls_on(state, event.node_id)
    _change(state, event.node_id, offline_since=max(1, event.at), unconfirmed_since=0)
    state.health_at = NOT_COMPUTED


def apply_draining(state: ClusterState, event: NodeDraining) -> None:
    stir_calls_on(state, event.node_id)
    _change(state, event.node_id, draining=True, drain_reason=event.reason)


def apply_resumed(state: ClusterState, event: NodeResumed) -> None:
    _change(state, event.node_id, draining=False, drain_reason="")


def apply_removed(state: ClusterState, event: NodeRemoved) -> None:
    forget_reservations_on(state, event.node_id)
    for gpu in state.node_gpus(event.node_id):
        del state.gpus[gpu.id]
    del state.nodes[event.node_id]
    forget_node(state, event.node_id)
    state.rooms.remove(event.node_id)
    state.fits_empty.clear()


def _unconfirm(state: ClusterState, at: int) -> None:
    """A node that has not contacted this scheduler may be gone: it keeps its tasks and gets no new ones."""
    for node_id, node in state.nodes.items():
        if not node.offline_since:
            _change(state, node_id, unconfirmed_since=max(1, at))


def confirm_all(state: ClusterState) -> None:
    """For a run ahead on a fork: every unconfirmed node comes back."""
    for node_id, node in state.nodes.items():
        if node.unconfirmed_since:
            _change(state, node_id, unconfirmed_since=0)


def _change(state: ClusterState, node_id: NodeId, **facts: int | str) -> None:
    state.nodes[node_id] = replace(state.nodes[node_id], **facts)
    state.rooms.refresh(node_id)


def _list_gpus(state: ClusterState, node_id: NodeId, listed: tuple[Gpu, ...], at: int) -> None:
    """Sets the whole list of a node. A GPU missing from it is removed, at once or with its lease."""
    moved_from = {
        known.node_id
        for gpu in listed
        if (known := state.gpus.get(gpu.id)) is not None and known.node_id != node_id
    }
    moved = {gpu.id for gpu in listed}
    for other in sorted(moved_from):
        state.rooms.refresh(other, [gpu for gpu in state.node_gpus(other) if gpu.id not in moved])
    gpus = {gpu.id: gpu for gpu in note_listed(state, node_id, listed, at)}
    for gpu in state.node_gpus(node_id):
        if gpu.id in gpus:
            continue
        if gpu.id in state.rooms.holders:
            gpus[gpu.id] = replace(gpu, gone=True)
        else:
            del state.gpus[gpu.id]
    state.gpus.update(gpus)
    state.rooms.refresh(node_id, list(gpus.values()))
    state.fits_empty.clear()
