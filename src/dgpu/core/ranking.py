"""Nodes in the order in which a kind of demand likes them, kept up lazily from a list of changed rooms."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush

from dgpu.core.ids import NodeId
from dgpu.core.policy.fit import Demand, rank
from dgpu.core.room import Room
from dgpu.core.task import WHOLE_MILLI


class Ranking:
    """A heap of (rank, node id) with stale entries skipped: the top is the best node, whatever the cluster's size.
    Ties go by node id, so equal states choose alike.
    """

    __slots__ = ("demand", "heap", "most_leases", "ranks", "seen")

    def __init__(self, demand: Demand, most_leases: int, rooms: Iterable[Room], seen: int) -> None:
        self.demand = demand
        self.most_leases = most_leases
        self.seen = seen  # how much of the list of changes is worked in
        self.ranks: dict[NodeId, int] = {}
        for room in rooms:
            value = rank(room, demand, most_leases)
            if value is not None:
                self.ranks[room.node_id] = value
        self.heap = [(value, node_id) for node_id, value in self.ranks.items()]
        heapify(self.heap)

    def copy(self) -> Ranking:
        """For rooms that are as they are now, with no changes yet."""
        twin = Ranking(self.demand, self.most_leases, (), 0)
        twin.ranks, twin.heap = self.ranks.copy(), self.heap.copy()
        return twin

    def catch_up(self, changes: list[Room]) -> None:
        if self.seen == len(changes):
            return
        ranks, demand = self.ranks, self.demand
        gpus, whole = demand.gpus, demand.share_milli == WHOLE_MILLI
        for room in dict.fromkeys(changes[self.seen :]):  # how a room is now counts, not how often it changed
            # Most rooms of a busy cluster have no card to give, which is seen at once.
            gives = len(room.idle) >= gpus if whole else room.has_part or room.idle
            value = rank(room, demand, self.most_leases) if gives else None
            node_id = room.node_id
            if value is None:
                ranks.pop(node_id, None)
            elif ranks.get(node_id) != value:
                ranks[node_id] = value
                heappush(self.heap, (value, node_id))
        self.seen = len(changes)
        if len(self.heap) > 2 * len(ranks) + 64:
            self.heap = [(value, node_id) for node_id, value in ranks.items()]
            heapify(self.heap)

    def best(self) -> tuple[int, NodeId] | None:
        heap, ranks = self.heap, self.ranks
        while heap:
            top = heap[0]
            if ranks.get(top[1]) == top[0]:
                return top
            heappop(heap)
        return None
