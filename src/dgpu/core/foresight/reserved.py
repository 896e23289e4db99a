"""What people are told of reservations: a task's own, and those that keep a task waiting."""

from __future__ import annotations

from typing import Final

import msgspec

from dgpu.core.foresight.blockers import Blocker, blockers_of, plural
from dgpu.core.model.demand import Demand
from dgpu.core.model.ids import GpuId, NodeId, TaskId, task_name
from dgpu.core.model.reservation import Reservation
from dgpu.core.model.task import Task
from dgpu.core.rules.backfill import fits_without_reservations, grant_kept_to, in_the_way
from dgpu.core.state import ClusterState

MAX_AWAITED: Final = 16


class Reserved(msgspec.Struct, frozen=True, kw_only=True):
    """Of a waiting task."""

    at: int | None  # it starts by then; None: nobody knows when
    made_at: int
    node_ids: tuple[NodeId, ...]
    gpu_ids: tuple[GpuId, ...]
    waits_for: tuple[TaskId, ...]  # tasks that still run on these GPUs; of many, the oldest
    waits_for_total: int


def reserved_of(state: ClusterState, task_id: TaskId) -> Reserved | None:
    made = state.reservations.get(task_id)
    if made is None:
        return None
    gpu_ids = tuple(gpu_id for place in made.places for gpu_id in place.gpu_ids)
    running = sorted({lease.task_id for gpu_id in gpu_ids for lease in state.gpu_leases(gpu_id)})
    return Reserved(
        at=made.at or None,
        made_at=made.made_at,
        node_ids=tuple(place.node_id for place in made.places),
        gpu_ids=gpu_ids,
        waits_for=tuple(running[:MAX_AWAITED]),
        waits_for_total=len(running),
    )


def room_blockers(state: ClusterState, task: Task, demand: Demand, at: int) -> list[Blocker]:
    """What keeps a task off the nodes. One that would fit but for reservations waits for nothing else."""
    if not state.reservations or not fits_without_reservations(state, demand):
        return blockers_of(state, demand)
    if fits_now(state, demand) or grant_kept_to(state, task, demand, at):
        return []
    reservations = in_the_way(state, task, demand, at)
    if not reservations:
        return blockers_of(state, demand)
    first, node_id = reservations[0]
    others = f", and {plural(len(reservations) - 1, 'other')}" if len(reservations) > 1 else ""
    detail = (
        f"it would delay {task_name(first.task_id)}, which has a reservation on node {node_id} {_when(first, at)}"
        f"{others}; it may run ahead only if it is over by then"
    )
    numbers: dict[str, int | str] = {
        "task": task_name(first.task_id),
        "node": node_id,
        "at": first.at or "unknown",
        "reservations": len(reservations),
    }
    return [Blocker(code="reserved_for", detail=detail, numbers=numbers)]


def in_words(reserved: Reserved, at: int) -> str:
    names = ", ".join(reserved.node_ids)
    where = f"{'nodes' if len(reserved.node_ids) > 1 else 'node'} {names}"
    if reserved.at is None:
        return f"it has a reservation on {where}; when that comes free is unknown"
    return f"it has a reservation on {where} and starts within {_seconds(reserved.at - at)} s"


def fits_now(state: ClusterState, demand: Demand) -> bool:
    if demand.nodes > 1:
        return len(state.rooms.fitting(demand)) >= demand.nodes
    return state.rooms.best(demand) is not None


def _when(made: Reservation, at: int) -> str:
    return f"in {_seconds(made.at - at)} s" if made.at else "for when that comes free"


def _seconds(ms: int) -> int:
    return max(0, -(-ms // 1_000))
