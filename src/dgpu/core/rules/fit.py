"""Whether a node has room for a task, which of its GPUs the task gets, and how good the node is.

A task with several GPUs gets those with the fastest links to each other. The agent reports how near two GPUs are:
NVLink, then a common PCIe switch, then a common NUMA node.
"""

from __future__ import annotations

from itertools import combinations
from math import comb
from typing import TYPE_CHECKING, Final, TypeAlias

from dgpu.core.index.room import Card, Room
from dgpu.core.model.demand import Asks, Demand
from dgpu.core.model.task import WHOLE_MILLI, Constraint
from dgpu.core.rules.gpu_models import suits_model
from dgpu.core.rules.score import affinity, part_key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dgpu.core.index.room import Card, Room
    from dgpu.core.model.ids import GpuId

_Liked: TypeAlias = tuple[int, Card]  # the score of a GPU; ties go by place and id


def rank(room: Room, demand: Demand) -> int | None:
    """The smaller, the better; None: no room. With GPUs, the sum of the GPUs' keys (see rules.score). Without GPUs, the
    number of leases, so that such tasks are spread.
    """
    if not room.ready or room.is_full or not has_host(room, demand):
        return None
    if demand.constraints and not holds(room.labels, demand.constraints):
        return None
    gpus = demand.gpus
    if not gpus:
        return len(room.leases)
    if demand.share_milli < WHOLE_MILLI:
        best = _best_share(room, demand)
        return None if best is None else best[0]
    idle = room.idle
    if len(idle) < gpus:
        return None
    if room.mixed or demand.model:
        cards = _whole_cards(room, demand)
        return None if cards is None else sum(card.key - affinity(card, demand.model) for card in cards)
    # The common case: all GPUs of the room are alike in model, memory and trust.
    first = idle[0]
    if first.usable_mb < demand.gpu_memory_mb:
        return None
    if (demand.gpu_models or first.parole) and not _accepts(first, demand):
        return None
    return first.key if gpus == 1 else sum(card.key for card in idle[:gpus])


def has_host(room: Room, demand: Demand) -> bool:
    """Whether cpus and ram suffice, regardless of the GPUs."""
    if (cpus_milli := demand.cpus_milli) and cpus_milli > room.cpus_free_milli - room.kept_cpus_milli:
        return False
    return not demand.ram_mb or demand.ram_mb <= room.ram_free_mb - room.kept_ram_mb


def fits(room: Room, demand: Demand) -> bool:
    return rank(room, demand) is not None


def cards_in(room: Room, demand: Demand) -> list[Card]:
    """The GPUs that a task gets in a room that has room for it."""
    gpus = demand.gpus
    if room.mixed or demand.share_milli < WHOLE_MILLI or (demand.model and room.warm):
        return chosen_cards(room, demand)
    if gpus > 1 and not room.flat:
        return chosen_cards(room, demand)
    return room.idle[:gpus]  # all are alike, and sorted by score


def chosen_cards(room: Room, demand: Demand) -> list[Card]:
    """The GPUs that a task would get on this node; empty if it gets none or needs none."""
    gpus = demand.gpus
    if not gpus:
        return []
    if demand.share_milli < WHOLE_MILLI:
        best = _best_share(room, demand)
        return [] if best is None else [best[1]]
    return _whole_cards(room, demand) or []


def milli_on(demand: Asks, usable_mb: int) -> int:
    """A shared task holds the larger of its share and its part of the memory: one number counts both."""
    share = demand.share_milli
    memory_mb = demand.gpu_memory_mb
    if share == WHOLE_MILLI or not memory_mb:
        return share
    if memory_mb > usable_mb:
        return WHOLE_MILLI + 1  # more than any GPU of this kind has
    by_memory = -(-memory_mb * WHOLE_MILLI // usable_mb)
    return by_memory if by_memory > share else share  # noqa: FURB136 - for every room that changed


def reserved_mb(demand: Demand, usable_mb: int) -> int:
    """Memory that a lease holds on each of its GPUs; 0: all free memory. A share includes its part of the memory."""
    if demand.share_milli == WHOLE_MILLI:
        return demand.gpu_memory_mb
    return max(demand.gpu_memory_mb, usable_mb * demand.share_milli // WHOLE_MILLI)


def holds(labels: dict[str, str], constraints: tuple[Constraint, ...]) -> bool:
    return all((labels.get(label) in values) is wanted for label, wanted, values in constraints)


def accepts(card: Card, demand: Demand) -> bool:
    """Whether model, memory and trust suit, regardless of whether the GPU is free."""
    return card.usable_mb >= demand.gpu_memory_mb and _accepts(card, demand)


def _accepts(card: Card, demand: Demand) -> bool:
    if demand.gpu_models and not suits_model(demand.gpu_models, card.model):
        return False
    return demand.parole or not card.parole


def _whole_cards(room: Room, demand: Demand) -> list[Card] | None:
    """Idle GPUs in order of score. For several GPUs, the best connected ones."""
    gpus = demand.gpus
    fitting = [card for card in room.idle if accepts(card, demand)]
    if len(fitting) < gpus:
        return None
    if demand.model and room.warm:
        fitting.sort(key=lambda card: (card.key - affinity(card, demand.model), card.place, card.id))
    if gpus == 1 or room.flat or len(fitting) == gpus:
        return fitting[:gpus]
    return connected(room, fitting, gpus)


def _best_share(room: Room, demand: Demand) -> _Liked | None:
    """Prefers GPUs that other shares use, so that whole GPUs stay whole. This runs for every room that changed, so it
    compares only keys unless they are equal.
    """
    best: Card | None = None
    best_key = 0
    needs: int | None = None  # of a GPU
    model, mixed, cards = demand.model, room.mixed, room.cards
    loaded = model if room.warm else ""
    for gpu_id, free_milli in room.parts.items():
        card = cards[gpu_id]
        if needs is None or mixed:
            needs = _part_of(card, demand)
        if needs <= free_milli:
            key = part_key(card, free_milli)
            if model:
                key -= affinity(card, model)
            if best is None or key < best_key or (key == best_key and stands_before(card, best)):
                best, best_key = card, key
    for card in room.idle:
        if needs is None or mixed:
            needs = _part_of(card, demand)
        if needs <= WHOLE_MILLI:
            key = card.key - affinity(card, model) if model else card.key
            if best is None or key < best_key or (key == best_key and stands_before(card, best)):
                best, best_key = card, key
            if not loaded or loaded in card.warm:
                break  # idle GPUs are sorted by score: apart from loaded models, no later one is better
        elif not mixed:
            break
    return None if best is None else (best_key, best)


def stands_before(card: Card, other: Card) -> bool:
    """Compares by index. This runs in most decisions, so it builds no tuples."""
    return card.place < other.place or (card.place == other.place and card.id < other.id)


def _part_of(card: Card, demand: Demand) -> int:
    """The thousandths of a GPU that the task takes; more than a whole GPU if the task may not use this GPU."""
    usable_mb = card.usable_mb
    if usable_mb < demand.gpu_memory_mb:
        return WHOLE_MILLI + 1
    if (demand.gpu_models or card.parole) and not _accepts(card, demand):
        return WHOLE_MILLI + 1
    return milli_on(demand, usable_mb)


_MAX_SETS: Final = 128  # checked one by one; for more, a set grows GPU by GPU


def connected(room: Room, cards: Sequence[Card], count: int) -> list[Card]:
    """The `count` GPUs that are nearest to each other; ties go to GPUs of better score."""
    order = list(cards)
    if comb(len(order), count) <= _MAX_SETS:
        found = max(combinations(order, count), key=lambda some: nearness(room.near, some))
        return list(found)  # the first of the best: combinations come in order of score
    return max(
        (_grown(room, order, first, count) for first in order), key=lambda some: nearness(room.near, some)
    )


def nearness(near: dict[GpuId, dict[GpuId, int]], cards: Sequence[Card]) -> int:
    return sum(near.get(one.id, {}).get(other.id, 0) for one, other in combinations(cards, 2))


def _grown(room: Room, cards: list[Card], first: Card, count: int) -> list[Card]:
    chosen = [first]
    rest = [card for card in cards if card is not first]
    while len(chosen) < count:
        nearest = max(rest, key=lambda card: sum(room.near.get(card.id, {}).get(one.id, 0) for one in chosen))
        chosen.append(nearest)
        rest.remove(nearest)
    return chosen


class Spot:
    """Treated as frozen. One is created in every decision, and creating a named tuple takes longer."""

    __slots__ = ("cards", "gpu_memory_mb", "room", "share_milli")

    def __init__(self, room: Room, cards: list[Card], share_milli: int, gpu_memory_mb: int) -> None:
        self.room = room
        self.cards = cards
        self.share_milli = share_milli  # of each GPU
        self.gpu_memory_mb = gpu_memory_mb  # held on each GPU


def spot_in(room: Room, demand: Demand) -> Spot:
    """The GPUs that a task would get in a room that fits it."""
    return spot_on(room, demand, cards_in(room, demand))


def spot_on(room: Room, demand: Demand, cards: list[Card]) -> Spot:
    if not cards:
        return Spot(room, cards, WHOLE_MILLI, 0)
    if demand.share_milli == WHOLE_MILLI:
        return Spot(room, cards, WHOLE_MILLI, demand.gpu_memory_mb)
    usable = cards[0].usable_mb
    return Spot(room, cards, milli_on(demand, usable), reserved_mb(demand, usable))
