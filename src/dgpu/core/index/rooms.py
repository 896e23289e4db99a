"""The index of rooms: free resources of every node, and rankings of nodes, so that no decision scans the cluster."""

from __future__ import annotations

from bisect import insort
from heapq import nsmallest
from typing import TYPE_CHECKING, Final

from dgpu.core.index.cards import deal, status_of
from dgpu.core.index.packing import Packing, pack_cards
from dgpu.core.index.ranking import Rankings
from dgpu.core.index.room import BUSY, IDLE, STATUSES, Card, Room
from dgpu.core.index.soonest import Candidate, FreeAt, Soonest
from dgpu.core.model.demand import Demand
from dgpu.core.model.ids import GpuId, LeaseId, NodeId, TaskId
from dgpu.core.model.lease import Lease
from dgpu.core.model.node import Gpu, Node
from dgpu.core.model.reservation import Hold
from dgpu.core.model.settings import Placement, Settings
from dgpu.core.model.task import WHOLE_MILLI
from dgpu.core.model.typical import Typical
from dgpu.core.rules.fit import Spot, rank, spot_in, spot_on

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

_FEW: Final = 8  # rooms that are asked one by one
_PACK: Final = Placement.PACK  # a local name: a lookup of an enum member costs as much as a call


class Rooms:
    __slots__ = (
        "_giving",
        "_gpus",
        "_largest",
        "_leases",
        "_mixed",
        "_nodes",
        "_packing",
        "_rankings",
        "_refreshed",
        "_reserved",
        "_settings",
        "_soonest",
        "_typical",
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
        settings: Settings,
        typical: Typical,
    ) -> None:
        self._nodes = nodes
        self._gpus = gpus
        self._leases = leases
        self._settings = settings
        self._typical = typical
        self.by_node: dict[NodeId, Room] = {}
        self.holders: dict[GpuId, tuple[LeaseId, ...]] = {}  # several if tasks share the GPU
        self.counts: list[int] = [0] * len(STATUSES)
        self.improved: dict[NodeId, Room] = {}  # rooms that may have more to give since the last wake
        self._giving: dict[NodeId, Room] = {}  # rooms with idle GPUs that no reservation keeps
        self._rankings = Rankings(self.by_node)
        self._soonest = Soonest(self.by_node)
        # Rooms that were computed again: their GPUs may have begun or ceased to count for the quota.
        self._refreshed: dict[NodeId, None] = {}
        self._reserved: dict[NodeId, Room] = {}  # rooms with reservations
        self._packing: Packing | None = None  # created on first use
        self._mixed = False  # some node has several kinds of GPUs
        self._largest = -1  # GPUs of the largest node; -1: must be computed

    def rebuild(self) -> None:
        for lease_id, lease in self._leases.items():
            if lease.worker:
                continue  # its worker holds the GPUs
            self._room(lease.node_id).leases[lease_id] = None
            for gpu_id in lease.gpu_ids:
                self.holders[gpu_id] = (*self.holders.get(gpu_id, ()), lease_id)
        by_node: dict[NodeId, list[Gpu]] = {node_id: [] for node_id in self._nodes}
        for gpu in self._gpus.values():
            by_node[gpu.node_id].append(gpu)
        for node_id, gpus in by_node.items():
            self.refresh(node_id, gpus)

    def copy(
        self, nodes: Mapping[NodeId, Node], gpus: Mapping[GpuId, Gpu], leases: Mapping[LeaseId, Lease]
    ) -> Rooms:
        twin = Rooms(nodes, gpus, leases, self._settings, self._typical)
        twin.by_node = {node_id: room.copy() for node_id, room in self.by_node.items()}
        twin._soonest = Soonest(twin.by_node)
        twin.holders = self.holders.copy()
        twin.counts = self.counts.copy()
        twin._refreshed = self._refreshed.copy()
        twin._mixed = self._mixed
        twin.improved = {node_id: twin.by_node[node_id] for node_id in self.improved}
        twin._reserved = {node_id: twin.by_node[node_id] for node_id in self._reserved}
        twin._giving = {node_id: twin.by_node[node_id] for node_id in self._giving}
        twin._rankings = self._rankings.copy(twin.by_node)
        return twin

    def configure(self, settings: Settings) -> None:
        """New settings: promised memory and the order of nodes may differ."""
        if settings == self._settings:
            return
        self._settings = settings
        self._rankings.start_over()
        self._packing = None
        for node_id in self.by_node:
            self.refresh(node_id)

    def learn(self, typical: Typical) -> None:
        self._typical = typical
        if self._packing is not None:
            self._packing.learn(typical)

    # changes

    def refresh(self, node_id: NodeId, gpus: list[Gpu] | None = None) -> None:
        """Computes a room again. With `gpus`, the node's list of GPUs changed."""
        room = self._room(node_id)
        node = self._nodes[node_id]
        if gpus is None:
            gpus = [self._gpus[gpu_id] for gpu_id in room.gpu_ids]
        else:
            gpus.sort(key=_by_index)
            room.gpu_ids = tuple(gpu.id for gpu in gpus)
            self._largest = -1
        room.ready = node.takes_tasks
        room.max_leases = self._settings.max_leases
        room.labels = {**node.labels, "node": node_id}
        leases = [self._leases[lease_id] for lease_id in room.leases]
        room.cpus_free_milli = node.cpus_milli - sum(lease.cpus_milli for lease in leases)
        room.ram_free_mb = node.ram_in_steps_mb - sum(lease.ram_mb for lease in leases)
        deal(room, gpus, leases, self.holders, self._settings)
        if room.holds:
            room.keep(room.holds)
        self._mixed = self._mixed or room.mixed
        self._rankings.tell_apart(room)
        counts = [0] * len(STATUSES)
        for gpu in gpus:
            counts[STATUSES.index(status_of(gpu, node, leased=gpu.id in self.holders))] += 1
        self._count(room, counts)
        self._changed(room)
        self._refreshed[node_id] = None
        if room.ready:
            self.improved[node_id] = room

    def recount(self) -> None:
        """The rule changed by which GPUs count for the quota."""
        self._refreshed.update(dict.fromkeys(self.by_node))

    def take_refreshed(self) -> list[NodeId]:
        """The nodes whose GPUs may have begun or ceased to count for the quota since the last call."""
        if not self._refreshed:
            return []
        refreshed = list(self._refreshed)
        self._refreshed.clear()
        return refreshed

    def remove(self, node_id: NodeId) -> None:
        room = self.by_node.pop(node_id)
        self._largest = -1
        self._reserved.pop(node_id, None)
        self.improved.pop(node_id, None)
        self._refreshed[node_id] = None
        room.ready = False
        self._count(room, [0] * len(STATUSES))
        self._changed(room)

    def grant(self, lease: Lease) -> None:
        room = self.by_node[lease.node_id]
        room.leases[lease.id] = None
        room.cpus_free_milli -= lease.cpus_milli
        room.ram_free_mb -= lease.ram_mb
        known = True  # the free part is known without checking all GPUs
        for gpu_id in lease.gpu_ids:
            others = self.holders.get(gpu_id, ())
            self.holders[gpu_id] = (*others, lease.id)
            known = known and room.ready and gpu_id in room.cards
            if known and not others:
                self._take(room, room.cards[gpu_id])
            if lease.share_milli < WHOLE_MILLI:
                room.use(gpu_id, lease.share_milli, lease.gpu_memory_mb)
        if known:
            self._changed(room)
        else:
            self.refresh(lease.node_id)

    def release(self, lease: Lease) -> None:
        room = self.by_node[lease.node_id]
        del room.leases[lease.id]
        room.cpus_free_milli += lease.cpus_milli
        room.ram_free_mb += lease.ram_mb
        known = room.ready
        for gpu_id in lease.gpu_ids:
            others = tuple([each for each in self.holders.pop(gpu_id) if each != lease.id])
            if others:
                self.holders[gpu_id] = others
            card = room.cards.get(gpu_id)
            if not known or card is None:
                known = False
                continue
            if lease.share_milli < WHOLE_MILLI:
                room.use(gpu_id, -lease.share_milli, -lease.gpu_memory_mb)
            if not others:
                insort(room.kept if gpu_id in room.keeps else room.idle, card)
                self._shift(room, -1)
        if not known:
            self.refresh(lease.node_id)
            return
        self._changed(room)
        self.improved[room.node_id] = room

    def _take(self, room: Room, card: Card) -> None:
        (room.kept if card.id in room.keeps else room.idle).remove(card)
        self._shift(room, 1)

    def _shift(self, room: Room, taken: int) -> None:
        """Counts GPUs that changed from idle to busy; negative: from busy to idle."""
        of_room, of_all = room.counts, self.counts
        of_room[IDLE] -= taken
        of_room[BUSY] += taken
        of_all[IDLE] -= taken
        of_all[BUSY] += taken

    # queries

    def find(self, demand: Demand) -> Spot | None:
        """The node and GPUs for a task of this demand; None if it fits on no node now."""
        packs = self._settings.placement is _PACK and _is_packed(demand)
        if demand.whole_milli and len(self._giving) <= _FEW:
            few = self._few(demand)
            if not few:
                return None
            room = few[0][2]
            if not packs:
                return spot_in(room, demand)
            if len(few) == 1 and not room.mixed:
                return spot_on(room, demand, pack_cards(room, demand, room.idle[0].kind, WHOLE_MILLI))
        if packs:
            found = self._packed().best(demand)
            if found is not None:
                room = self.by_node[NodeId(found.node_id)]
                return spot_on(room, demand, pack_cards(room, demand, found.kind, found.from_milli))
            if not self._may_mix(demand):
                return None
        best = self._rankings.best(demand)
        return None if best is None else spot_in(best, demand)

    def _few(self, demand: Demand) -> list[tuple[int, NodeId, Room]]:
        """The rooms for whole GPUs, the best first. In a busy cluster few rooms have idle GPUs, and asking each is
        faster than an index: a tenth of a decision, with `pack` a quarter.
        """
        ranks = [(rank(room, demand), room) for room in self._giving.values()]
        return sorted([(value, room.node_id, room) for value, room in ranks if value is not None])

    def find_gang(self, demand: Demand) -> list[Spot]:
        """A node for each rank, the best first; empty if too few nodes have room now."""
        ranks = self.fitting(demand)
        if len(ranks) < demand.nodes:
            return []
        chosen = nsmallest(demand.nodes, ((value, node_id) for node_id, value in ranks.items()))
        rooms = [self.by_node[node_id] for _, node_id in chosen]
        return [spot_in(room, demand) for room in rooms]

    def fitting(self, demand: Demand) -> Mapping[NodeId, int]:
        """The nodes with room for the demand now, each with its rank."""
        return self._rankings.fitting(demand)

    def _may_mix(self, demand: Demand) -> bool:
        """Packing uses GPUs of one kind. If no kind has enough on a node, a mix of kinds may suffice."""
        return demand.gpus > 1 and self._mixed

    # reservations

    def reserved(self) -> Collection[Room]:
        """The rooms with reservations."""
        return self._reserved.values()

    def by_opening(self, gpus: int, free_at: FreeAt) -> Iterator[Candidate]:
        """The rooms by the time at which this many of their GPUs may be free; see soonest."""
        return self._soonest.rooms(gpus, free_at)

    def largest_gpus(self) -> int:
        """GPUs of the largest node."""
        if self._largest < 0:
            self._largest = max([len(room.gpu_ids) for room in self.by_node.values()], default=0)
        return self._largest

    @property
    def idle_milli(self) -> int:
        return self.counts[IDLE] * WHOLE_MILLI

    def note_improved(self, node_id: NodeId) -> None:
        """More lines may use the reserved GPUs of this node."""
        room = self.by_node.get(node_id)
        if room is not None and room.ready:
            self.improved[node_id] = room

    def touch(self, node_id: NodeId) -> None:
        """Leases or reservations of the node changed, but not its free resources."""
        room = self.by_node.get(node_id)
        if room is not None:
            room.version += 1
            self._soonest.note(room)

    def keep(self, node_id: NodeId, task_id: TaskId, hold: Hold | None) -> None:
        """Sets what a reservation holds of a node; None: nothing."""
        room = self.by_node.get(node_id)
        if room is None:
            return
        before = room.holds.get(task_id)
        holds = {each: known for each, known in room.holds.items() if each != task_id}
        if hold is not None:
            holds[task_id] = hold
        room.keep(dict(sorted(holds.items())))
        if room.holds:
            self._reserved[node_id] = room
        else:
            self._reserved.pop(node_id, None)
        self._changed(room)
        if room.ready and before is not None and (hold is None or not {*before.gpu_ids} <= {*hold.gpu_ids}):
            self.improved[node_id] = room

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

    def _packed(self) -> Packing:
        packing = self._packing
        if packing is None:
            packing = self._packing = Packing(self._typical)
            packing.changed.update(self.by_node)
        packing.catch_up(self.by_node)
        return packing

    def _changed(self, room: Room) -> None:
        if room.ready and room.idle:
            self._giving[room.node_id] = room
        else:
            self._giving.pop(room.node_id, None)
        if self._packing is not None:
            self._packing.changed[room.node_id] = room
        room.version += 1
        self._rankings.note(room)
        self._soonest.note(room)


def _is_packed(demand: Demand) -> bool:
    """Tasks without a demand are spread. A constraint selects nodes by label, and the nodes of a group differ in
    labels.
    """
    return not demand.constraints and bool(demand.gpus or demand.cpus_milli or demand.ram_mb)


def _by_index(gpu: Gpu) -> tuple[int, GpuId]:
    return (gpu.index, gpu.id)
