"""Chooses the GPUs of a node with the fastest links to each other. The agent reports how near two GPUs are: NVLink,
then a common PCIe switch, then a common NUMA node.
"""

from __future__ import annotations

from itertools import combinations
from math import comb
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dgpu.core.index.room import Card, Room
    from dgpu.core.model.ids import GpuId

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
