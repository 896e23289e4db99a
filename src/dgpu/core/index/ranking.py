"""Nodes sorted by rank for a kind of demand, updated lazily from a list of changed rooms."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from heapq import heapify, heappop, heappush
from typing import Final

from dgpu.core.index.room import Room
from dgpu.core.model.demand import Demand
from dgpu.core.model.ids import NodeId
from dgpu.core.model.task import WHOLE_MILLI
from dgpu.core.rules.fit import has_host, milli_on, rank

_MAX_RANKED: Final = 2_000_000  # entries over all rankings: a bound on memory
_MIN_RANKINGS: Final = 16
_MAX_RANKINGS: Final = 1_024
_MIN_CHANGES: Final = 4_096  # changes stored before rankings must catch up or are dropped
_ANY_MB: Final = 1 << 60
_FEW_SKIPPED: Final = 8  # nodes that lack cpus or ram


class Ranking:
    """A heap of (rank, node id) that skips stale entries: the top is the best node, at any size of the cluster. Ties go
    by node id, so equal states choose alike.
    """

    __slots__ = ("demand", "heap", "ranks", "seen")

    def __init__(self, demand: Demand, rooms: Iterable[Room], seen: int) -> None:
        self.demand = demand
        self.seen = seen  # number of changes processed
        self.ranks: dict[NodeId, int] = {}
        for room in rooms:
            value = rank(room, demand)
            if value is not None:
                self.ranks[room.node_id] = value
        self.heap = [(value, node_id) for node_id, value in self.ranks.items()]
        heapify(self.heap)

    def catch_up(self, changes: list[Room]) -> None:
        if self.seen == len(changes):
            return
        ranks, demand = self.ranks, self.demand
        gpus, whole = demand.gpus, demand.share_milli == WHOLE_MILLI
        for room in dict.fromkeys(changes[self.seen :]):  # only the current state of a room counts
            # Most rooms of a busy cluster have no free GPU, which is a cheap check.
            gives = len(room.idle) >= gpus if whole else room.parts or room.idle
            value = rank(room, demand) if gives else None
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

    def best_host(self, demand: Demand, rooms: Mapping[NodeId, Room]) -> tuple[Room | None, bool]:
        """The best node that also has the cpus and ram, for a ranking that ignores them. False: too many of the best
        nodes lack them, so the result is unknown.
        """
        skipped: list[tuple[int, NodeId]] = []
        found: Room | None = None
        while (top := self.best()) is not None and len(skipped) < _FEW_SKIPPED:
            room = rooms[top[1]]
            if has_host(room, demand):
                found = room
                break
            skipped.append(heappop(self.heap))
        for entry in skipped:
            heappush(self.heap, entry)
        return found, found is not None or top is None


class Rankings:
    """One ranking for each recent kind of demand. Demands that are equal for all nodes share a ranking. So do demands
    that differ only in cpus and ram, while most nodes have enough of these.
    """

    __slots__ = (
        "_by_demand",
        "_changes",
        "_least_mb",
        "_parole",
        "_rooms",
        "_warm",
    )

    def __init__(self, rooms: Mapping[NodeId, Room]) -> None:
        self._rooms = rooms
        self._by_demand: dict[Demand, Ranking] = {}
        self._changes: list[Room] = []
        self._least_mb = _ANY_MB  # the least that any GPU can promise
        self._warm = False  # models are loaded somewhere
        self._parole = False  # some GPU is on parole

    def copy(self, rooms: Mapping[NodeId, Room]) -> Rankings:
        """The copy has no rankings yet. Each is made on first use."""
        twin = Rankings(rooms)
        twin._least_mb, twin._warm, twin._parole = self._least_mb, self._warm, self._parole
        return twin

    # changes

    def start_over(self) -> None:
        """New settings: promised memory and the order of nodes may differ."""
        self._by_demand.clear()
        self._least_mb, self._warm, self._parole = _ANY_MB, False, False

    def tell_apart(self, room: Room) -> None:
        """A GPU may differ from all others in a property that no demand had to check before. Then all rankings start
        over.
        """
        least_mb = min((card.usable_mb for card in room.cards.values()), default=self._least_mb)
        parole = self._parole or any(card.parole for card in room.cards.values())
        if least_mb < self._least_mb or room.warm > self._warm or parole > self._parole:
            self._by_demand.clear()
            self._least_mb = min(least_mb, self._least_mb)
            self._warm = self._warm or room.warm
            self._parole = parole

    def note(self, room: Room) -> None:
        """The room changed."""
        self._changes.append(room)
        if len(self._changes) > _MIN_CHANGES and len(self._changes) > 2 * len(self._rooms):
            self._forget_changes()

    # queries

    def best(self, demand: Demand) -> Room | None:
        ranking = self._by_demand.get(demand)
        if ranking is None:
            ranking = self._open(demand)
        ranking.catch_up(self._changes)
        of = ranking.demand
        if of.cpus_milli == demand.cpus_milli and of.ram_mb == demand.ram_mb:
            top = ranking.best()
            return None if top is None else self._rooms[top[1]]
        room, known = ranking.best_host(demand, self._rooms)
        if known:
            return room
        # cpus or ram are short: from now on the demand has its own ranking.
        self._by_demand[demand] = ranking = self._open_plain(self._plain(demand))
        ranking.catch_up(self._changes)
        top = ranking.best()
        return None if top is None else self._rooms[top[1]]

    def fitting(self, demand: Demand) -> Mapping[NodeId, int]:
        """All nodes with room for the demand now, each with its rank."""
        ranking = self._open_plain(self._plain(demand))
        ranking.catch_up(self._changes)
        return ranking.ranks

    # leaves

    def _plain(self, demand: Demand) -> Demand:
        """The demand without requirements that make no difference here."""
        return demand.but(
            gpu_memory_mb=demand.gpu_memory_mb if self._counts_memory(demand) else 0,
            model=demand.model if self._warm else "",
            parole=demand.parole and self._parole,
        )

    def _counts_memory(self, demand: Demand) -> bool:
        """Whether some GPU may have too little memory for the demand, or its memory makes the share larger."""
        if demand.share_milli == WHOLE_MILLI:
            return demand.gpu_memory_mb > self._least_mb
        return milli_on(demand, self._least_mb) > demand.share_milli

    def _open(self, demand: Demand) -> Ranking:
        plain = self._plain(demand)
        if demand.gpus:  # without GPUs, cpus and ram are the whole demand
            plain = plain.but(cpus_milli=0, ram_mb=0)
        ranking = self._by_demand[demand] = self._open_plain(plain)
        return ranking

    def _open_plain(self, plain: Demand) -> Ranking:
        known = self._by_demand.get(plain)
        if known is not None and known.demand == plain:
            return known
        most = max(_MIN_RANKINGS, min(_MAX_RANKINGS, _MAX_RANKED // (len(self._rooms) + 1)))
        if len(self._by_demand) >= most:
            self._by_demand.clear()
        ranking = self._by_demand[plain] = Ranking(plain, self._rooms.values(), len(self._changes))
        return ranking

    def _forget_changes(self) -> None:
        """Rankings in use catch up, unused ones are dropped: the list stays short even without queries."""
        half = len(self._changes) // 2
        used = {demand: ranking for demand, ranking in self._by_demand.items() if ranking.seen >= half}
        for ranking in used.values():
            ranking.catch_up(self._changes)
        for ranking in used.values():
            ranking.seen = 0
        self._by_demand = used
        self._changes = []
