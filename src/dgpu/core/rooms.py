"""The index of rooms: what every node has to give, and rankings of nodes, so that a decision scans no cluster."""

from __future__ import annotations

from bisect import insort
from typing import TYPE_CHECKING

import msgspec

from dgpu.core.ids import GpuId, LeaseId, NodeId
from dgpu.core.lease import Lease
from dgpu.core.node import Gpu, GpuStatus, Node
from dgpu.core.policy.fit import Demand, has_memory
from dgpu.core.ranking import Ranking
from dgpu.core.room import STATUSES, Card, Room, Slot

if TYPE_CHECKING:
    from collections.abc import Mapping

_IDLE, _BUSY = int(Slot.IDLE), int(Slot.BUSY)
_MOST_RANKED = 2_000_000  # entries over all rankings: a bound on memory
_FEWEST_RANKINGS = 16
_MOST_RANKINGS = 1_024
_FEWEST_CHANGES = 4_096  # kept before rankings must catch up or go


class Rooms:
    __slots__ = (
        "_changes",
        "_gpus",
        "_leases",
        "_most_leases",
        "_nodes",
        "_rankings",
        "by_node",
        "counts",
        "holders",
        "improved",
    )

    def __init__(
        self,
        nodes: Mapping[NodeId, Node],
        gpus: Mapping[GpuId, Gpu],
        leases: Mapping[LeaseId, Lease],
        most_leases: int,
    ) -> None:
        self._nodes = nodes
        self._gpus = gpus
        self._leases = leases
        self._most_leases = most_leases
        self.by_node: dict[NodeId, Room] = {}
        self.holders: dict[GpuId, LeaseId] = {}
        self.counts: list[int] = [0] * len(STATUSES)
        self.improved: dict[NodeId, Room] = {}  # may have more to give than when they were last looked at
        self._rankings: dict[Demand, Ranking] = {}
        self._changes: list[Room] = []

    def rebuild(self) -> None:
        for lease_id, lease in self._leases.items():
            self._room(lease.node_id).leases[lease_id] = None
            for gpu_id in lease.gpu_ids:
                self.holders[gpu_id] = lease_id
        by_node: dict[NodeId, list[Gpu]] = {node_id: [] for node_id in self._nodes}
        for gpu in self._gpus.values():
            by_node[gpu.node_id].append(gpu)
        for node_id, gpus in by_node.items():
            self.refresh(node_id, gpus)

    def copy(
        self, nodes: Mapping[NodeId, Node], gpus: Mapping[GpuId, Gpu], leases: Mapping[LeaseId, Lease]
    ) -> Rooms:
        """Rankings are not copied: they come back when they are asked for."""
        twin = Rooms(nodes, gpus, leases, self._most_leases)
        twin.by_node = {node_id: room.copy() for node_id, room in self.by_node.items()}
        twin.holders = self.holders.copy()
        twin.counts = self.counts.copy()
        twin.improved = {node_id: twin.by_node[node_id] for node_id in self.improved}
        return twin

    def limit_leases(self, most_leases: int) -> None:
        if most_leases != self._most_leases:
            self._most_leases = most_leases
            self._rankings.clear()
            self.improved.update(self.by_node)

    # what changes

    def refresh(self, node_id: NodeId, gpus: list[Gpu] | None = None) -> None:
        """Work out a room anew. With `gpus`, the node's list of them changed."""
        room = self._room(node_id)
        node = self._nodes[node_id]
        if gpus is None:
            gpus = [self._gpus[gpu_id] for gpu_id in room.gpu_ids]
        else:
            gpus.sort(key=_by_index)
            room.gpu_ids = tuple(gpu.id for gpu in gpus)
        room.ready = not node.offline_since and not node.draining
        leases = [self._leases[lease_id] for lease_id in room.leases]
        room.cpus_free_milli = node.cpus_milli - sum(lease.cpus_milli for lease in leases)
        room.ram_free_mb = node.ram_in_steps_mb - sum(lease.ram_mb for lease in leases)
        room.cards = {gpu.id: _card(gpu) for gpu in gpus if not (gpu.reserved or gpu.fault or gpu.gone)}
        room.idle = (
            sorted(card for gpu_id, card in room.cards.items() if gpu_id not in self.holders)
            if room.ready
            else []
        )
        counts = [0] * len(STATUSES)
        for gpu in gpus:
            counts[STATUSES.index(status_of(gpu, node, leased=gpu.id in self.holders))] += 1
        self._count(room, counts)
        self._changed(room)
        if room.ready:
            self.improved[node_id] = room

    def remove(self, node_id: NodeId) -> None:
        room = self.by_node.pop(node_id)
        self.improved.pop(node_id, None)
        room.ready = False
        self._count(room, [0] * len(STATUSES))
        self._changed(room)

    def grant(self, lease: Lease) -> None:
        room = self.by_node[lease.node_id]
        room.leases[lease.id] = None
        room.cpus_free_milli -= lease.cpus_milli
        room.ram_free_mb -= lease.ram_mb
        taken = 0
        idle = room.idle
        for gpu_id in lease.gpu_ids:
            self.holders[gpu_id] = lease.id
            for place, card in enumerate(idle):
                if card[2] == gpu_id:
                    del idle[place]
                    taken += 1
                    break
        if taken != len(lease.gpu_ids):
            self.refresh(lease.node_id)
            return
        if taken:
            for counts in (room.counts, self.counts):
                counts[_IDLE] -= taken
                counts[_BUSY] += taken
        self._changed(room)

    def release(self, lease: Lease) -> None:
        room = self.by_node[lease.node_id]
        del room.leases[lease.id]
        room.cpus_free_milli += lease.cpus_milli
        room.ram_free_mb += lease.ram_mb
        for gpu_id in lease.gpu_ids:
            del self.holders[gpu_id]
        cards = [room.cards.get(gpu_id) for gpu_id in lease.gpu_ids]
        if not room.ready or None in cards:
            self.refresh(lease.node_id)
            return
        for card in cards:
            if card is not None:
                insort(room.idle, card)
        if cards:
            for counts in (room.counts, self.counts):
                counts[_IDLE] += len(cards)
                counts[_BUSY] -= len(cards)
        self._changed(room)
        self.improved[room.node_id] = room

    # what is asked

    def best(self, demand: Demand) -> Room | None:
        """The node that a task of this demand goes to, or None if it fits nowhere now."""
        ranking = self._rankings.get(demand)
        if ranking is None:
            ranking = self._new_ranking(demand)
        if ranking.seen != len(self._changes):
            ranking.catch_up(self._changes)
        top = ranking.best()
        if top is None or not has_memory(top[0], demand):
            return None
        return self.by_node[top[1]]

    # leaves

    def _room(self, node_id: NodeId) -> Room:
        room = self.by_node.get(node_id)
        if room is None:
            room = self.by_node[node_id] = Room(node_id)
        return room

    def _count(self, room: Room, counts: list[int]) -> None:
        for slot, (before, now) in enumerate(zip(room.counts, counts, strict=True)):
            self.counts[slot] += now - before
        room.counts = counts

    def _new_ranking(self, demand: Demand) -> Ranking:
        shared = msgspec.structs.replace(demand, gpu_memory_mb=0)
        ranking = self._rankings.get(shared)
        if ranking is None:
            most = max(_FEWEST_RANKINGS, min(_MOST_RANKINGS, _MOST_RANKED // (len(self.by_node) + 1)))
            if len(self._rankings) >= most:
                self._rankings.clear()
            ranking = Ranking(shared, self._most_leases, self.by_node.values(), len(self._changes))
            self._rankings[shared] = ranking
        self._rankings[demand] = ranking
        return ranking

    def _changed(self, room: Room) -> None:
        changes = self._changes
        changes.append(room)
        if len(changes) > _FEWEST_CHANGES and len(changes) > 2 * len(self.by_node):
            self._forget_changes()

    def _forget_changes(self) -> None:
        """Rankings in use catch up, those not asked for lately go: the list stays short, also where nobody asks."""
        half = len(self._changes) // 2
        used = {demand: ranking for demand, ranking in self._rankings.items() if ranking.seen >= half}
        for ranking in used.values():
            ranking.catch_up(self._changes)
        for ranking in used.values():
            ranking.seen = 0
        self._rankings = used
        self._changes = []


def status_of(gpu: Gpu, node: Node, *, leased: bool) -> GpuStatus:
    if node.offline_since or gpu.gone:
        return GpuStatus.OFFLINE
    if gpu.fault:
        return GpuStatus.ERROR
    if leased:
        return GpuStatus.BUSY
    if node.draining:
        return GpuStatus.DRAINING
    return GpuStatus.RESERVED if gpu.reserved else GpuStatus.IDLE


def _card(gpu: Gpu) -> Card:
    return (-max(0, gpu.memory_in_steps_mb - gpu.foreign_mb), gpu.index, gpu.id, gpu.model)


def _by_index(gpu: Gpu) -> tuple[int, GpuId]:
    return (gpu.index, gpu.id)
