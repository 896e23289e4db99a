"""Which node and which cards a waiting task gets. Highest priority first, then the oldest."""

from __future__ import annotations

from dgpu.core.events import Event, TaskPlaced, TaskStarted
from dgpu.core.ids import TaskId
from dgpu.core.policy.fit import Demand, chosen_cards
from dgpu.core.policy.order import heads
from dgpu.core.state import ClusterState


def first_grant(state: ClusterState, at: int) -> tuple[Event, ...]:
    """The next task in order that fits, whatever was tried before; () if none does."""
    refused: set[Demand] = set()
    for task_id, demand in heads(state, at):
        if demand in refused:
            continue
        events = grant(state, task_id, demand, at)
        if events:
            return events
        refused.add(demand)
    return ()


def grant(state: ClusterState, task_id: TaskId, demand: Demand, at: int) -> tuple[Event, ...]:
    room = state.rooms.best(demand)
    if room is None:
        return ()
    task = state.tasks[task_id]
    lease_id = state.next_lease_id
    placed = TaskPlaced(
        at=at,
        task_id=task_id,
        lease_id=lease_id,
        attempt=task.attempt + 1,
        node_id=room.node_id,
        gpu_ids=tuple([card[2] for card in chosen_cards(room, demand)]),
    )
    if task.allocation:
        return (placed, TaskStarted(at=at, task_id=task_id, lease_id=lease_id, started_at=at))
    return (placed,)
