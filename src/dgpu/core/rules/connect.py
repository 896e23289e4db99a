"""Which of a node's cards talk to each other fastest. How near two cards are comes from the agent: NVLink, then a
common PCIe switch, then a common NUMA node.
"""

from __future__ import annotations

from itertools import combinations
from math import comb
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dgpu.core.index.room import Card, Room
    from dgpu.core.model.ids import GpuId

_MAX_SETS: Final = 128  # looked at one by one; beyond it sets are grown card by card


def connected(room: Room, cards: Sequence[Card], count: int) -> list[Card]:
    """The `count` cards with the most nearness among them; ties go to cards that are liked better."""
    order = list(cards)
    if comb(len(order), count) <= _MAX_SETS:
        found = max(combinations(order, count), key=lambda some: nearness(room.near, some))
        return list(found)  # the first of the best: combinations come in the order of liking
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
