"""A reservation: where and when a task without room is going to start. Other tasks may not delay it."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from dgpu.core.model.ids import GpuId, NodeId, TaskId


class Place(msgspec.Struct, forbid_unknown_fields=True, frozen=True, array_like=True, gc=False):
    node_id: NodeId
    gpu_ids: tuple[GpuId, ...] = ()  # idle ones are kept for the task; busy ones as soon as they are free


class Reservation(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True, omit_defaults=True):
    task_id: TaskId
    places: tuple[Place, ...]  # one, or one for each rank of a gang; empty: it reserves quota alone
    at: int = 0  # its GPUs are free by then; 0: unknown
    made_at: int = 0
    number: int = 0  # orders reservations by age; only the numbers of current reservations matter


class Hold(NamedTuple):
    """What one reservation keeps on one node. Of cpus and ram it keeps its demand, as far as they are free."""

    gpu_ids: tuple[GpuId, ...]
    cpus_milli: int
    ram_mb: int
