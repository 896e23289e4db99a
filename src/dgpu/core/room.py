"""What a node has to give right now. Derived from the state, changed in place, never journaled."""

from __future__ import annotations

import enum
from typing import TypeAlias

from dgpu.core.ids import GpuId, LeaseId, NodeId
from dgpu.core.node import GpuStatus

# A card that may be given away, in the order of choice: most free memory first, then by index and id.
Card: TypeAlias = tuple[int, int, GpuId, str]  # (-free_mb, index, id, model)

STATUSES = tuple(GpuStatus)


class Slot(enum.IntEnum):
    """Where a GPU's status is counted in `Room.counts`."""

    IDLE = STATUSES.index(GpuStatus.IDLE)
    BUSY = STATUSES.index(GpuStatus.BUSY)


class Room:
    __slots__ = (
        "cards",
        "counts",
        "cpus_free_milli",
        "gpu_ids",
        "idle",
        "leases",
        "node_id",
        "ram_free_mb",
        "ready",
    )

    def __init__(self, node_id: NodeId) -> None:
        self.node_id = node_id
        self.ready = False  # connected and not draining
        self.cpus_free_milli = 0
        self.ram_free_mb = 0
        self.idle: list[Card] = []  # sorted; empty unless ready
        self.cards: dict[GpuId, Card] = {}  # all that are neither reserved nor faulty nor gone, leased or not
        self.gpu_ids: tuple[GpuId, ...] = ()  # all of the node, by index
        self.leases: dict[LeaseId, None] = {}
        self.counts: list[int] = [0] * len(STATUSES)  # GPUs per status

    def copy(self) -> Room:
        twin = Room(self.node_id)
        twin.ready = self.ready
        twin.cpus_free_milli = self.cpus_free_milli
        twin.ram_free_mb = self.ram_free_mb
        twin.idle = self.idle.copy()
        twin.cards = self.cards  # replaced, never changed
        twin.gpu_ids = self.gpu_ids
        twin.leases = self.leases.copy()
        twin.counts = self.counts.copy()
        return twin

    def facts(self) -> tuple[object, ...]:
        """For comparison with a room rebuilt from scratch."""
        return (
            self.node_id,
            self.ready,
            self.cpus_free_milli,
            self.ram_free_mb,
            self.idle,
            self.cards,
            self.gpu_ids,
            sorted(self.leases),
            self.counts,
        )
