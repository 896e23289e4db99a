"""Applies events to gangs: tasks with a lease for each of their ranks."""

from __future__ import annotations

from msgspec.structs import replace

from dgpu.core.apply.health import note_freed
from dgpu.core.apply.task import lease_of, put_on
from dgpu.core.events import GangPlaced, RankEnded
from dgpu.core.model.gang import Gang, failure_of
from dgpu.core.model.ids import LeaseId
from dgpu.core.state import ClusterState


def apply_gang_placed(state: ClusterState, event: GangPlaced) -> None:
    task = state.tasks[event.task_id]
    known = state.queue.shapes[task.shape_id]
    for rank, placed in enumerate(event.ranks):
        lease = lease_of(placed, known.shape, state.nonce, rank)
        state.leases[lease.id] = lease
        state.rooms.grant(lease)
        state.hold(known, lease)
    state.next_lease_id = LeaseId(event.ranks[-1].lease_id + 1)
    state.gangs[task.id] = Gang(leases=tuple(placed.lease_id for placed in event.ranks))
    put_on(
        state,
        task,
        known,
        event.ranks[0],
        gpu_ids=tuple(gpu_id for placed in event.ranks for gpu_id in placed.gpu_ids),
        node_ids=tuple(placed.node_id for placed in event.ranks),
    )


def apply_rank_ended(state: ClusterState, event: RankEnded) -> None:
    lease = replace(state.leases[event.lease_id], ended=True)
    state.leases[lease.id] = lease
    note_freed(state, lease)
    gang = state.gangs[event.task_id]
    failed = failure_of(event, lease.rank)
    if failed is None or gang.failed is not None:
        return
    state.gangs[event.task_id] = replace(gang, failed=failed)
    state.hasten(gang.leases)
    for lease_id in gang.leases:
        other = state.leases[lease_id]
        if not other.ended and not other.stopping:
            state.leases[lease_id] = replace(other, stopping="rank_ended")
