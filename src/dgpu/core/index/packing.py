"""The index behind `placement: pack`: finds the node with the least waste without checking every node.

Nodes are in groups by a rough view of their GPUs: kind, number of whole free GPUs, size of the largest part-used GPU,
idle or not. Within a group they are sorted by cpus. A decision takes one candidate from each group that can hold the
task, by bisection, and scores only these. So the cost grows with the number of groups (tens), not with nodes or kinds
of demand. A change affects one or two groups, however many tasks wait.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from dgpu.core.index.ordered import Ordered
from dgpu.core.index.room import Card, Room
from dgpu.core.model.demand import Demand
from dgpu.core.model.ids import NodeId
from dgpu.core.model.node import Kind
from dgpu.core.model.task import WHOLE_MILLI
from dgpu.core.model.typical import Typical
from dgpu.core.rules.fit import connected, stands_before
from dgpu.core.rules.fragment import (
    Cards,
    Choice,
    Host,
    View,
    accepts,
    choose,
    is_heavy,
    milli_on,
    score,
    view_of,
)

NodeName: TypeAlias = str
# (kind, slot). The type has no fixed length for the compiler: otherwise the tuple would be rebuilt at each lookup.
GroupKey: TypeAlias = tuple[Kind | int, ...]
Order: TypeAlias = tuple[int, int, int, NodeName, Kind]
_LEVEL_MILLI: Final = 250  # step for part-used GPUs; measured: finer steps find nothing better
_LEVELS: Final = WHOLE_MILLI // _LEVEL_MILLI + 1
_MAX_CHOICES: Final = 16_384  # cached


class Found:
    __slots__ = ("from_milli", "kind", "node_id", "order", "score")

    def __init__(self, member: _Member, choice: Choice, score: int, cpus_left_milli: int) -> None:
        self.node_id = member.node_id
        self.kind = member.cards.kind
        self.from_milli = choice.from_milli  # take the GPU or GPUs from those with this much free
        self.score = score
        # Least waste; then the fullest node, the fewest cpus left, the lowest id.
        left_milli = sum(member.cards.free_milli) - choice.taken_milli
        self.order: Order = (score, left_milli, cpus_left_milli, member.node_id, member.cards.kind)


class Packing:
    """Report every change with `put`, `drop` and `learn`; `best` returns the best place."""

    __slots__ = ("_choices", "_full", "_groups", "_members", "_typical", "_views", "changed")

    def __init__(self, typical: Typical) -> None:
        self._typical = typical
        self._views: dict[Kind, View] = {}
        # Nodes with equal GPUs share a choice, and so do demands that differ only in cpus, ram or models.
        self._choices: dict[tuple[Cards, int, int], Choice] = {}
        # A group without members stays: in a busy cluster, every end and every grant would make and remove one.
        self._groups: dict[GroupKey, _Group] = {}
        self._members: dict[NodeName, list[_Member]] = {}
        # Rooms without any free part of a GPU. In a busy cluster every end and every grant adds or removes one, and
        # only tasks without GPUs need them. They join a group when such a task asks.
        self._full: dict[NodeName, Room] = {}
        self.changed: dict[NodeId, Room] = {}  # rooms for the next `catch_up`

    # changes

    def catch_up(self, rooms: Mapping[NodeId, Room]) -> None:
        for node_id, room in self.changed.items():
            takes = room.ready and not room.is_full and rooms.get(node_id) is room
            if takes and (room.idle or room.parts):
                self._put_room(room)
                continue
            self.drop(node_id)
            if takes:
                self._full[node_id] = room
        self.changed.clear()

    def _put_room(self, room: Room) -> None:
        cpus_milli, ram_mb = room.host_left()
        self.put(room.node_id, Host(cpus_milli, ram_mb, not room.leases), parts_of(room))

    def put(self, node_id: NodeName, host: Host, parts: Sequence[Cards]) -> None:
        """Sets the state of a node. `parts`: one per kind of GPU; a node without GPUs has one empty part."""
        self.drop(node_id)
        members = self._members[node_id] = [_Member(node_id, host, cards) for cards in parts]
        for member in members:
            group = self._groups.get(member.group)
            if group is None:
                group = self._groups[member.group] = _Group(member)
            group.by_cpus.add(host.cpus_milli, node_id, member)

    def drop(self, node_id: NodeName) -> None:
        """The node takes no tasks: removed, draining or full of leases."""
        self._full.pop(node_id, None)
        for member in self._members.pop(node_id, ()):
            self._groups[member.group].by_cpus.remove(member.host.cpus_milli, node_id)

    def learn(self, typical: Typical) -> None:
        """Sets a new table. Choices are computed again when they are next needed."""
        self._typical = typical
        self._views.clear()
        self._choices.clear()

    # queries

    def best(self, demand: Demand) -> Found | None:
        if not demand.gpus:
            for room in [*self._full.values()]:
                self._put_room(room)
        best: Found | None = None
        for group in self._groups.values():
            found = self._best_of(group, demand)
            if found is not None and (best is None or found.order < best.order):
                best = found
        return best

    # leaves

    def _best_of(self, group: _Group, demand: Demand) -> Found | None:
        """The candidate of a group, and its waste."""
        gpus, kind, typical = demand.gpus, group.kind, self._typical
        milli = milli_on(demand, kind) if gpus else 0
        if not group.by_cpus or (group.whole < gpus and (milli == WHOLE_MILLI or group.max_milli < milli)):
            return None
        if gpus and not accepts(demand, kind):
            return None
        spare_per_gpu = typical.cpus_milli_per_gpu if is_heavy(typical, demand, gpus * milli) else 0
        member = group.candidate(demand, milli, spare_per_gpu=spare_per_gpu)
        if member is None:
            return None
        cards, host = member.cards, member.host
        choice = self._choice(cards, demand, milli)
        waste = score(typical, cards, host, demand, choice)
        return Found(member, choice, waste, host.cpus_milli - demand.cpus_milli)

    def _choice(self, cards: Cards, demand: Demand, milli: int) -> Choice:
        key = (cards, demand.gpus, milli)
        choice = self._choices.get(key)
        if choice is None:
            choice = choose(self._view(cards.kind), cards, demand)
            if choice is None:
                raise AssertionError("a candidate fits")
            if len(self._choices) >= _MAX_CHOICES:
                self._choices.clear()
            self._choices[key] = choice
        return choice

    def _view(self, kind: Kind) -> View:
        view = self._views.get(kind)
        if view is None:
            view = self._views[kind] = view_of(self._typical, kind)
        return view


def parts_of(room: Room) -> tuple[Cards, ...]:
    """The free shares of a room's GPUs, by kind."""
    idle = room.idle
    if not room.mixed:
        for card in room.cards.values():
            whole = _WHOLE[: len(idle)]
            return (Cards(card.kind, (*sorted(room.parts.values()), *whole) if room.parts else whole),)
    free: dict[Kind, list[int]] = {card.kind: [] for card in room.cards.values()}
    for card in idle:
        free[card.kind].append(WHOLE_MILLI)
    for gpu_id, left in room.parts.items():
        free[room.cards[gpu_id].kind].append(left)
    if not free:
        return (Cards(_NO_GPUS, ()),)
    return tuple(Cards(kind, tuple(sorted(left))) for kind, left in sorted(free.items()))


def pack_cards(room: Room, demand: Demand, kind: Kind, from_milli: int) -> list[Card]:
    """The GPUs of a result of `Packing.best`. Topology chooses among whole GPUs."""
    gpus = demand.gpus
    if not gpus:
        return []
    if from_milli < WHOLE_MILLI:
        parts = [
            card
            for gpu_id, left in room.parts.items()
            if left == from_milli and (card := room.cards[gpu_id]).kind == kind
        ]
        return [_first(parts)]
    whole = [card for card in room.idle if card.kind == kind] if room.mixed else room.idle
    if gpus == 1:
        return [_first(whole)]
    whole = sorted(whole, key=_by_index)
    if room.flat or len(whole) == gpus:
        return whole[:gpus]
    return connected(room, whole, gpus)


_NO_GPUS: Final = Kind("", 0)
_WHOLE: Final[tuple[int, ...]] = tuple([WHOLE_MILLI] * 1_024)  # more GPUs than any node has


def _by_index(card: Card) -> tuple[int, str]:
    return (card.place, card.id)


def _first(cards: list[Card]) -> Card:
    """The first GPU by index."""
    first = cards[0]
    for card in cards:
        if stands_before(card, first):
            first = card
    return first


class _Member:
    """A node, or one kind of its GPUs."""

    __slots__ = ("cards", "group", "host", "largest_milli", "node_id", "whole")

    def __init__(self, node_id: NodeName, host: Host, cards: Cards) -> None:
        self.node_id = node_id
        self.host = host
        self.cards = cards
        free = cards.free_milli
        self.whole = len(free) - bisect_left(free, WHOLE_MILLI)
        self.largest_milli = free[-self.whole - 1] if self.whole < len(free) else 0  # of the part-used ones
        slot = self.whole * _LEVELS + _level(self.largest_milli)
        self.group: GroupKey = (cards.kind, 2 * slot + host.idle)


class _Group:
    __slots__ = ("about_milli", "by_cpus", "kind", "max_milli", "parts_count", "whole")

    def __init__(self, first: _Member) -> None:
        self.kind = first.cards.kind
        self.whole = whole = first.whole
        level = _level(first.largest_milli)
        # The largest share that fits here.
        self.max_milli = WHOLE_MILLI if whole else level * _LEVEL_MILLI - 1 if level else 0
        # Shares compete for parts: a whole GPU has room for any share, a fully used one for none.
        self.parts_count = not whole and level > 0
        self.about_milli = whole * WHOLE_MILLI + level * _LEVEL_MILLI // 2
        self.by_cpus: Ordered[_Member] = Ordered()

    def candidate(self, demand: Demand, milli: int, *, spare_per_gpu: int) -> _Member | None:
        """The member with the least stranding. For a task with few cpus, this is the fitting member with the fewest
        cpus. For a heavy task (`spare_per_gpu`), it is the first member that keeps this many cpus for each of its
        remaining GPUs, else the member with the most cpus.
        """
        cpus_milli = demand.cpus_milli
        left_milli = self.about_milli - demand.gpus * milli
        if spare_per_gpu and left_milli > 0:
            cpus_milli += left_milli * spare_per_gpu // WHOLE_MILLI
        member = self.by_cpus.first_from(cpus_milli)
        if member is None:
            member = self.by_cpus.last()
            if member.host.cpus_milli < demand.cpus_milli:
                return None
        if member.host.ram_mb >= demand.ram_mb and (not self.parts_count or member.largest_milli >= milli):
            return member
        return self._any_fitting(demand, milli)

    def _any_fitting(self, demand: Demand, milli: int) -> _Member | None:
        """The preferred member lacks ram or a large enough part. Among the fitting members, this takes the one with the
        least of the scarcest resource.
        """
        members = [*self.by_cpus.all_from(0)]
        have_ram = [each for each in members if each.host.ram_mb >= demand.ram_mb]
        have_cpus = [each for each in members if each.host.cpus_milli >= demand.cpus_milli]
        have_part = [each for each in members if not self.parts_count or each.largest_milli >= milli]
        fitting = {*have_ram} & {*have_cpus} & {*have_part}
        scarce = min(have_ram, have_cpus, have_part, key=len)
        if scarce is have_ram:
            scarce.sort(key=lambda each: (each.host.ram_mb, each.node_id))
        elif scarce is have_part:
            scarce.sort(key=lambda each: (each.largest_milli, each.node_id))
        return next((each for each in scarce if each in fitting), None)


def _level(largest_milli: int) -> int:
    """0: no part."""
    return largest_milli // _LEVEL_MILLI + 1 if largest_milli else 0
