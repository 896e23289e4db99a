"""The limits of pools: their parts of the GPUs that count, updated as nodes join, leave and fail."""

from __future__ import annotations

from typing import Final

from dgpu.core.index.room import STATUSES
from dgpu.core.model.ids import NodeId
from dgpu.core.model.node import GpuStatus
from dgpu.core.model.quota import Split, split
from dgpu.core.model.task import Pool
from dgpu.core.state import ClusterState, gpu_status

_COUNTED: Final = tuple(
    STATUSES.index(status)
    for status in (GpuStatus.IDLE, GpuStatus.BUSY, GpuStatus.DRAINING, GpuStatus.UNCONFIRMED)
)


def schedulable(state: ClusterState) -> int:
    """The GPUs that count for the quota."""
    counts = state.rooms.counts
    return sum([counts[slot] for slot in _COUNTED])


def quota_of(state: ClusterState) -> Split:
    return split(schedulable(state), state.quota.online_ppm)


def settle_pools(state: ClusterState) -> None:
    """Updates the pools' limits: the quota, plus current use on GPUs that do not count for it."""
    refreshed = state.rooms.take_refreshed()
    if not refreshed:
        return
    for node_id in refreshed:
        _count_away(state, node_id)
    state.stirred = True
    state.bookings.windows_at = -1  # they depend on the limits
    parts = quota_of(state)
    for pool in Pool:
        away = sum(held[pool] for held in state.away.values()) if state.away else 0
        state.queue.pools[pool].limit_milli = parts.milli(pool) + away


def _count_away(state: ClusterState, node_id: NodeId) -> None:
    """Use of GPUs that no longer count for the quota does not count against it."""
    state.away.pop(node_id, None)
    room = state.rooms.by_node.get(node_id)
    if room is None:
        return
    counts = room.counts
    if not room.leases or sum(counts) == sum(counts[slot] for slot in _COUNTED):
        return
    away = dict.fromkeys(Pool, 0)
    for lease_id in room.leases:
        lease = state.leases[lease_id]
        pool = state.shapes[state.tasks[lease.task_id].shape_id].pool
        for gpu_id in lease.gpu_ids:
            if gpu_status(state, state.gpus[gpu_id]) is not GpuStatus.BUSY:
                away[pool] += lease.share_milli
    if any(away.values()):
        state.away[node_id] = away
