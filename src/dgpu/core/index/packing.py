"""The index behind `placement: pack`: finds the node that wastes least without looking at every node.

Nodes are kept in groups by what their GPUs look like from afar: kind, number of whole free GPUs, size of the largest
part-used one, idle or not. Within a group they are sorted by cpus. A decision takes one candidate from each group that
can hold the task, by bisection, and scores only those; a group that did not change since keeps its score. So the cost
follows the number of groups (tens), not of nodes or of kinds of demand; and a change touches one group or two, whatever
is waiting.

Scores of the GPU side are cached per class of equal nodes (`_CardsClass`), within the class, until the next table.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple, TypeAlias

from dgpu.core.index.ordered import Ordered
from dgpu.core.index.room import Card, Room
from dgpu.core.model.demand import Demand
from dgpu.core.model.ids import NodeId
from dgpu.core.model.node import Kind
from dgpu.core.model.task import WHOLE_MILLI
from dgpu.core.model.typical import Typical
from dgpu.core.rules.connect import connected
from dgpu.core.rules.fit import stands_before
from dgpu.core.rules.fragment import (
    IDLE_NODE_MILLI,
    Cards,
    Choice,
    Host,
    View,
    accepts,
    choose,
    is_heavy,
    milli_on,
    stranding,
    view_of,
)

NodeName: TypeAlias = str
# (gpus, milli, cpus, ram). Of no length that the compiler knows: else it would be made anew wherever it is looked up.
Asked: TypeAlias = tuple[int, ...]
_LEVEL_MILLI: Final = 250  # part-used GPUs are told apart this finely; measured: finer finds nothing better
_LEVELS: Final = WHOLE_MILLI // _LEVEL_MILLI + 1
_SPARE_CLASSES: Final = 4_096  # classes kept that no node is in now: nodes come back to them
_MAX_DEMANDS: Final = 4_096  # whose accepted kinds are remembered
_MAX_CHOICES: Final = 256  # in a class: shapes of GPU demands are few, but nobody promises it
_MAX_RATED: Final = 256  # in a group, likewise
_MAX_CHANGED: Final = 256  # rooms that may wait to be taken in: about a millisecond for who asks next
_UNKNOWN: Final = object()  # in no group; None is: nobody there fits
_MILLIONTHS: Final = 1_000  # in a thousandth


class Found(NamedTuple):
    node_id: NodeName
    kind: Kind
    from_milli: int  # take (each of) the GPUs from those with this much free
    score: int


class Packing:
    """Tell it of every change (`put`, `drop`, `learn`), ask it for the `best` place."""

    __slots__ = ("_accepted", "_classes", "_full", "_kinds", "_members", "_typical", "_views", "changed")

    def __init__(self, typical: Typical) -> None:
        self._typical = typical
        self._views: dict[Kind, View] = {}
        self._classes: dict[Cards, _CardsClass] = {}
        self._kinds: dict[Kind, dict[int, _Group]] = {}  # groups that have members only
        self._members: dict[NodeName, tuple[_Member, ...]] = {}
        self._accepted: dict[Demand, tuple[Kind, ...]] = {}
        # Rooms with no GPU left nor a part of one. In a busy cluster every end and every grant makes one or unmakes one,
        # and only tasks without GPUs want them: until one asks, they are in no group.
        self._full: dict[NodeId, Room] = {}
        self.changed: dict[NodeId, Room] = {}  # rooms that `catch_up` will look at

    # what changes

    def catch_up(self, rooms: Mapping[NodeId, Room], most_leases: int) -> None:
        for node_id, room in self.changed.items():
            self._take_in(node_id, room, rooms, most_leases)
        self.changed.clear()

    def catch_up_some(self, rooms: Mapping[NodeId, Room], most_leases: int) -> None:
        """Nobody asks now, and a room that changes again need be taken in only once. But who asks next must not find too
        much to do: so beyond a number of rooms the oldest are taken in, mostly one by a decision, which changes one.
        """
        over = len(self.changed) - _MAX_CHANGED
        if over > 0:
            for node_id in [*islice(self.changed, 1 + over // 32)]:
                self._take_in(node_id, self.changed.pop(node_id), rooms, most_leases)

    def _take_in(self, node_id: NodeId, room: Room, rooms: Mapping[NodeId, Room], most_leases: int) -> None:
        self._full.pop(node_id, None)
        if not room.ready or len(room.leases) >= most_leases or rooms.get(node_id) is not room:
            self.drop(node_id)
        elif room.idle or room.parts:
            self._put_room(room)
        else:
            self.drop(node_id)
            self._full[node_id] = room

    def _put_room(self, room: Room) -> None:
        cpus_milli, ram_mb = room.host_left()
        self.put(room.node_id, Host(cpus_milli, ram_mb, not room.leases), parts_of(room))

    def put(self, node_id: NodeName, host: Host, parts: Sequence[Cards]) -> None:
        """The node is now like this. `parts`: one per kind of GPU; one without GPUs if it has none."""
        known = self._members.get(node_id)
        if known is not None and len(known) == len(parts) == 1 and known[0].is_like(host, parts[0]):
            # Its GPUs are as they were: it stays in its group, at another place.
            member = known[0]
            self._kinds[parts[0].kind][member.slot].move(member, host)
            return
        self.drop(node_id)
        members = []
        for cards in parts:
            each = self._class_of(cards)
            member = _Member(node_id, host, each, each.slot * 2 + host.idle)
            groups = self._kinds.get(cards.kind)
            if groups is None:
                groups = self._kinds[cards.kind] = {}
                self._accepted.clear()
            group = groups.get(member.slot)
            if group is None:
                group = groups[member.slot] = _Group(each, idle=host.idle)
            group.add(member)
            each.members += 1
            members.append(member)
        self._members[node_id] = tuple(members)

    def drop(self, node_id: NodeName) -> None:
        """The node takes no tasks: gone, draining or full of leases."""
        for member in self._members.pop(node_id, ()):
            member.of.members -= 1
            kind = member.of.cards.kind
            groups = self._kinds[kind]
            group = groups[member.slot]
            group.remove(member)
            if not group.by_cpus:
                del groups[member.slot]
                # A kind stays though it has no member now: its last node is likely to change, not to leave.

    def learn(self, typical: Typical) -> None:
        """A new table. Scores are not worked out anew here: each class does so when it is next a candidate."""
        self._typical = typical
        self._views.clear()
        for groups in self._kinds.values():
            for group in groups.values():
                group.rated.clear()

    # what is asked

    def from_milli(self, cards: Cards, demand: Demand) -> int:
        """Of these cards, which are known to have room: take (each of) the GPUs from those with this much free."""
        need: Asked = (demand.gpus, milli_on(demand, cards.kind) if demand.gpus else 0)
        return self._class_of(cards).choice(self._view(cards.kind), demand, need).from_milli

    def best(self, demand: Demand) -> Found | None:
        """Least waste; then the fullest node, the fewest cpus left, the lowest id."""
        if self._full and not demand.gpus:
            for room in self._full.values():
                self._put_room(room)
            self._full.clear()
        best: _Rated | None = None
        for kind in self._kinds_for(demand):
            rated = self._best_of(kind, demand)
            if rated is not None and (best is None or rated.is_before(best)):
                best = rated
        if best is None:
            return None
        return Found(best.member.node_id, best.member.of.cards.kind, best.choice.from_milli, best.waste)

    # leaves

    def _best_of(self, kind: Kind, demand: Demand) -> _Rated | None:
        gpus = demand.gpus
        milli = milli_on(demand, kind) if gpus else 0
        asked: Asked = (gpus, milli, demand.cpus_milli, demand.ram_mb)
        best: _Rated | None = None
        for group in self._kinds[kind].values():
            if group.whole < gpus and (milli == WHOLE_MILLI or group.most_milli < milli):
                continue
            rated: object = group.rated.get(asked, _UNKNOWN)
            if rated is _UNKNOWN:
                if len(group.rated) >= _MAX_RATED:
                    group.rated.clear()
                rated = group.rated[asked] = self._rate(group, self._view(kind), demand, milli)
            if isinstance(rated, _Rated) and (best is None or rated.is_before(best)):
                best = rated
        return best

    def _rate(self, group: _Group, view: View, demand: Demand, milli: int) -> _Rated | None:
        """The candidate of a group, and what it would waste."""
        typical, taken_milli = self._typical, demand.gpus * milli
        spare_per_gpu = typical.cpus_milli_per_gpu if is_heavy(typical, demand, taken_milli) else 0
        member = group.candidate(demand, milli, spare_per_gpu=spare_per_gpu)
        if member is None:
            return None
        each, host = member.of, member.host
        choice = each.choice(view, demand, (demand.gpus, milli))
        total = each.total_milli
        waste = choice.waste + view.price * taken_milli
        waste += _MILLIONTHS * stranding(typical, total, host, taken_milli, demand)
        if group.idle:
            waste += _MILLIONTHS * IDLE_NODE_MILLI
        return _Rated(waste, total - taken_milli, host.cpus_milli - demand.cpus_milli, member, choice)

    def _kinds_for(self, demand: Demand) -> tuple[Kind, ...]:
        kinds = self._accepted.get(demand)
        if kinds is None:
            if len(self._accepted) >= _MAX_DEMANDS:
                self._accepted.clear()
            kinds = tuple(kind for kind in sorted(self._kinds) if not demand.gpus or accepts(demand, kind))
            self._accepted[demand] = kinds
        return kinds

    def _view(self, kind: Kind) -> View:
        view = self._views.get(kind)
        if view is None:
            view = self._views[kind] = view_of(self._typical, kind)
        return view

    def _class_of(self, cards: Cards) -> _CardsClass:
        each = self._classes.get(cards)
        if each is None:
            if len(self._classes) > 2 * len(self._members) + _SPARE_CLASSES:
                self._classes = {cards: each for cards, each in self._classes.items() if each.members}
            each = self._classes[cards] = _CardsClass(cards)
        return each


def parts_of(room: Room) -> tuple[Cards, ...]:
    """The free shares of a room's cards, by kind."""
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
    """Which cards are meant by what `Packing.best` found. Whole ones are for topology to choose."""
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
_WHOLE: Final[tuple[int, ...]] = tuple([WHOLE_MILLI] * 1_024)  # more cards than any node has


def _by_index(card: Card) -> tuple[int, str]:
    return (card.place, card.id)


def _first(cards: list[Card]) -> Card:
    """By index."""
    first = cards[0]
    for card in cards:
        if stands_before(card, first):
            first = card
    return first


class _CardsClass:
    """Nodes whose GPUs are equal share one of these, and with it the scores."""

    __slots__ = ("_choices", "_view", "cards", "largest_milli", "members", "slot", "total_milli", "whole")

    def __init__(self, cards: Cards) -> None:
        self.cards = cards
        free = cards.free_milli
        self.whole = len(free) - bisect_left(free, WHOLE_MILLI)
        self.largest_milli = free[-self.whole - 1] if self.whole < len(free) else 0  # of the part-used ones
        self.total_milli = sum(free)
        self.slot = self.whole * _LEVELS + (
            self.largest_milli // _LEVEL_MILLI + 1 if self.largest_milli else 0
        )
        self.members = 0
        self._view: View | None = None  # that `_choices` were made with
        self._choices: dict[Asked, Choice] = {}

    def choice(self, view: View, demand: Demand, need: Asked) -> Choice:
        """`need`: GPUs and milli of each. Demands that differ in cpus, ram or models only share a choice."""
        if self._view is not view:
            self._view = view
            self._choices = {}
        choice = self._choices.get(need)
        if choice is None:
            found = choose(view, self.cards, demand)
            if found is None:
                raise AssertionError("a candidate fits")
            if len(self._choices) >= _MAX_CHOICES:
                self._choices = {}
            choice = self._choices[need] = found
        return choice


class _Member:
    __slots__ = ("host", "node_id", "of", "slot")

    def __init__(self, node_id: NodeName, host: Host, of: _CardsClass, slot: int) -> None:
        self.node_id = node_id
        self.host = host
        self.of = of
        self.slot = slot  # of its group

    def is_like(self, host: Host, cards: Cards) -> bool:
        return host.idle == self.host.idle and cards == self.of.cards


class _Rated:
    """A candidate, with what it is liked by: least waste, then the fullest, then the fewest cpus left, then the lowest id."""

    __slots__ = ("choice", "cpus_left", "left_milli", "member", "waste")

    def __init__(self, waste: int, left_milli: int, cpus_left: int, member: _Member, choice: Choice) -> None:
        self.waste = waste
        self.left_milli = left_milli
        self.cpus_left = cpus_left
        self.member = member
        self.choice = choice

    def is_before(self, other: _Rated) -> bool:
        if self.waste != other.waste:
            return self.waste < other.waste
        if self.left_milli != other.left_milli:
            return self.left_milli < other.left_milli
        if self.cpus_left != other.cpus_left:
            return self.cpus_left < other.cpus_left
        return self.member.node_id < other.member.node_id


class _Group:
    """Members sorted by each of the things that a task may run short of."""

    __slots__ = ("about_milli", "by_cpus", "by_part", "by_ram", "idle", "most_milli", "rated", "whole")

    def __init__(self, first: _CardsClass, *, idle: bool) -> None:
        self.whole = first.whole
        self.idle = idle
        # The candidate for each (gpus, milli, cpus, ram) asked for since it last changed; None: it has none. A change of
        # a node touches two groups of many, so most need not be asked again.
        self.rated: dict[Asked, _Rated | None] = {}
        # The most that a share can get here.
        part_milli = first.largest_milli - first.largest_milli % _LEVEL_MILLI + _LEVEL_MILLI - 1
        self.most_milli = WHOLE_MILLI if first.whole else part_milli if first.largest_milli else 0
        self.about_milli = first.whole * WHOLE_MILLI + (first.slot % _LEVELS) * _LEVEL_MILLI // 2
        self.by_cpus: Ordered[_Member] = Ordered()
        self.by_ram: Ordered[_Member] = Ordered()
        # Only where shares compete for parts: a whole GPU has room for any share, a used up one for none.
        self.by_part: Ordered[_Member] | None = Ordered() if first.largest_milli and not first.whole else None

    def add(self, member: _Member) -> None:
        self.rated.clear()
        self.by_cpus.add(member.host.cpus_milli, member.node_id, member)
        self.by_ram.add(member.host.ram_mb, member.node_id, member)
        if self.by_part is not None:
            self.by_part.add(member.of.largest_milli, member.node_id, member)

    def remove(self, member: _Member) -> None:
        self.rated.clear()
        self.by_cpus.remove(member.host.cpus_milli, member.node_id)
        self.by_ram.remove(member.host.ram_mb, member.node_id)
        if self.by_part is not None:
            self.by_part.remove(member.of.largest_milli, member.node_id)

    def move(self, member: _Member, host: Host) -> None:
        """It has other cpus or ram than before, unless what was taken meanwhile came back."""
        before, member.host = member.host, host
        if host.cpus_milli == before.cpus_milli and host.ram_mb == before.ram_mb:
            return
        self.rated.clear()
        if host.cpus_milli != before.cpus_milli:
            self.by_cpus.remove(before.cpus_milli, member.node_id)
            self.by_cpus.add(host.cpus_milli, member.node_id, member)
        if host.ram_mb != before.ram_mb:
            self.by_ram.remove(before.ram_mb, member.node_id)
            self.by_ram.add(host.ram_mb, member.node_id, member)

    def candidate(self, demand: Demand, milli: int, *, spare_per_gpu: int) -> _Member | None:
        """The member of the least stranding. For a task light on cpus that is the one with the fewest cpus that
        fits; for a heavy one (`spare_per_gpu`) the first that keeps so many cpus for each GPU it has left, or else
        the one with most.
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
        if member.host.ram_mb >= demand.ram_mb and (self.by_part is None or member.of.largest_milli >= milli):
            return member
        return self._any_fitting(demand, milli)

    def _any_fitting(self, demand: Demand, milli: int) -> _Member | None:
        """The liked one lacks ram or a large enough part. Go through the fewest that have enough of one thing:
        mostly one thing is scarce and decides alone, and then the first of them is it.
        """
        tails = [(self.by_ram, demand.ram_mb), (self.by_cpus, demand.cpus_milli)]
        if self.by_part is not None:
            tails.append((self.by_part, milli))
        scarce, amount = min(tails, key=lambda tail: tail[0].count_from(tail[1]))
        for member in scarce.all_from(amount):
            if member.host.cpus_milli < demand.cpus_milli or member.host.ram_mb < demand.ram_mb:
                continue
            if self.by_part is None or member.of.largest_milli >= milli:
                return member
        return None
