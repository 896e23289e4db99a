"""Which node and which cards a waiting task gets. Highest priority first, then the oldest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from dgpu.core.events import Event, TaskPlaced, TaskStarted
from dgpu.core.index.room import Room
from dgpu.core.index.spot import Spot
from dgpu.core.model.demand import Demand
from dgpu.core.model.ids import TaskId
from dgpu.core.model.task import Task
from dgpu.core.rules.admission import admits, claim_of_grant
from dgpu.core.rules.gang import grant_gang
from dgpu.core.rules.order import heads
from dgpu.core.state import ClusterState

Kept: TypeAlias = Callable[[ClusterState, Task, Demand, int], tuple[Event, ...]]


def first_grant(state: ClusterState, at: int, kept: Kept) -> tuple[Event, ...]:
    """The next task in order that fits, whatever was tried before; () if none does. `kept`: with what reservations
    keep, as far as it may have that.
    """
    refused: set[Demand] = set()
    for task_id, line in heads(state, at):
        demand = line.crowd.demand
        if demand in refused and not state.reservations:
            continue
        if not admits(state, line, line.crowd.claim):
            continue
        events = grant(state, task_id, demand, at) if demand not in refused else ()
        if not events and state.reservations:
            events = kept(state, state.tasks[task_id], demand, at)
        if not events:
            refused.add(demand)
        elif not line.crowd.takes_part_of_a_card or admits(state, line, claim_of_grant(events)):
            return events
    return ()


def grant(
    state: ClusterState, task_id: TaskId, demand: Demand, at: int, fitting: Sequence[Room] | None = None
) -> tuple[Event, ...]:
    """`fitting`: the rooms that have room for it, the best liked first, if they are few and known."""
    if demand.nodes > 1:
        return grant_gang(state, task_id, demand, at)
    spot = state.rooms.find(demand, fitting)
    return () if spot is None else grant_at(state, task_id, spot, at)


def grant_at(state: ClusterState, task_id: TaskId, spot: Spot, at: int) -> tuple[Event, ...]:
    task = state.tasks[task_id]
    lease_id = state.next_lease_id
    cards = spot.cards
    placed = TaskPlaced(
        at=at,
        task_id=task_id,
        lease_id=lease_id,
        attempt=task.attempt + 1,
        node_id=spot.room.node_id,
        gpu_ids=(cards[0].id,) if len(cards) == 1 else tuple([card.id for card in cards]),
        share_milli=spot.share_milli,
        gpu_memory_mb=spot.gpu_memory_mb,
    )
    if task.allocation:
        return (placed, TaskStarted(at=at, task_id=task_id, lease_id=lease_id, started_at=at))
    return (placed,)
