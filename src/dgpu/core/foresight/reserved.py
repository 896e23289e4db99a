"""Texts about reservations: a task's own, and reservations that keep a task waiting."""

from __future__ import annotations

from typing import Final

import msgspec

from dgpu.core.foresight.blockers import Blocker, blocker, blockers_of, plural
from dgpu.core.index.line import Line
from dgpu.core.model.demand import Demand
from dgpu.core.model.ids import GpuId, NodeId, TaskId, task_name
from dgpu.core.refusals import ReservedFor
from dgpu.core.rules.access import access_of
from dgpu.core.rules.place import (
    has_room_but_for_reservations,
    place,
    reserved_for,
    rooms_but_for_reservations,
)
from dgpu.core.state import ClusterState

MAX_AWAITED: Final = 16


class Reserved(msgspec.Struct, frozen=True, kw_only=True):
    """The reservation of a waiting task."""

    at: int | None  # the task starts by then; None: unknown
    made_at: int
    node_ids: tuple[NodeId, ...]
    gpu_ids: tuple[GpuId, ...]
    waits_for: tuple[TaskId, ...]  # tasks that still run on these GPUs; if many, the oldest
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


def room_blockers(state: ClusterState, line: Line, task_id: TaskId, at: int) -> list[Blocker]:
    """Why a line fits on no node. A task that would fit without reservations waits for nothing else."""
    demand = line.demand
    if not state.reservations:
        return blockers_of(state, demand)
    access = access_of(state, line, task_id, at)
    if place(state, line, access, at):
        return []
    refusal = reserved_for(state, demand, access)
    if refusal is None:
        return blockers_of(state, demand)
    others = f", and {plural(refusal.reservations - 1, 'other')}" if refusal.reservations > 1 else ""
    detail = (
        f"it would delay {task_name(refusal.task_id)}, which has a reservation on node {refusal.node_id}"
        f" {_when(refusal, at)}{others}; it may run ahead only if it ends by then"
    )
    found = blocker(
        refusal.code,
        detail,
        task=task_name(refusal.task_id),
        node=refusal.node_id,
        at=refusal.at or "unknown",
        left_ms=max(0, refusal.at - at) if refusal.at else 0,
        reservations=refusal.reservations,
    )
    return [found]


def in_words(reserved: Reserved, at: int) -> str:
    if not reserved.node_ids:
        return f"quota is reserved for it; {_quota_when(reserved, at)}"
    names = ", ".join(reserved.node_ids)
    where = f"{'nodes' if len(reserved.node_ids) > 1 else 'node'} {names}"
    if reserved.at is None:
        return f"it has a reservation on {where}; its start time is unknown"
    return f"it has a reservation on {where} and starts within {_seconds(reserved.at - at)} s"


def fits_but_for_reservations(state: ClusterState, demand: Demand) -> bool:
    return has_room_but_for_reservations(state, demand, rooms_but_for_reservations(state, demand))


def _when(refusal: ReservedFor, at: int) -> str:
    return f"in {_seconds(refusal.at - at)} s" if refusal.at else "for an unknown time"


def _quota_when(reserved: Reserved, at: int) -> str:
    if reserved.at is None:
        return "when enough of it comes free is unknown"
    return f"enough of it comes free within {_seconds(reserved.at - at)} s"


def _seconds(ms: int) -> int:
    return max(0, -(-ms // 1_000))
