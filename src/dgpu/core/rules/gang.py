"""Where the ranks of a gang go: to different nodes, all of them at once or none."""

from __future__ import annotations

from dgpu.core.events import Event, GangPlaced, TaskPlaced, TaskStarted
from dgpu.core.index.spot import Spot
from dgpu.core.model.demand import Demand
from dgpu.core.model.ids import LeaseId, TaskId
from dgpu.core.state import ClusterState


def grant_gang(state: ClusterState, task_id: TaskId, demand: Demand, at: int) -> tuple[Event, ...]:
    spots = state.rooms.find_gang(demand)
    return gang_at(state, task_id, spots, at) if spots else ()


def gang_at(state: ClusterState, task_id: TaskId, spots: list[Spot], at: int) -> tuple[Event, ...]:
    task = state.tasks[task_id]
    ranks = tuple(
        TaskPlaced(
            at=at,
            task_id=task_id,
            lease_id=LeaseId(state.next_lease_id + rank),
            attempt=task.attempt + 1,
            node_id=spot.room.node_id,
            gpu_ids=tuple(card.id for card in spot.cards),
            share_milli=spot.share_milli,
            gpu_memory_mb=spot.gpu_memory_mb,
        )
        for rank, spot in enumerate(spots)
    )
    placed = GangPlaced(at=at, task_id=task_id, ranks=ranks)
    if not task.allocation:
        return (placed,)
    return (
        placed,
        *(TaskStarted(at=at, task_id=task_id, lease_id=rank.lease_id, started_at=at) for rank in ranks),
    )
