"""A spot: where a task would go, the node and the cards on it."""

from __future__ import annotations

import msgspec

from dgpu.core.policy.fit import Demand, cards_in, milli_on, reserved_mb
from dgpu.core.room import Card, Room
from dgpu.core.task import WHOLE_MILLI


class Spot(msgspec.Struct, frozen=True, gc=False):
    """One is made in every decision, and a struct is made faster than a named tuple."""

    room: Room
    cards: list[Card]
    share_milli: int  # of each card
    gpu_memory_mb: int  # held on each card


def spot_in(room: Room, demand: Demand) -> Spot:
    """The cards that it would get in a room that it fits."""
    return spot_on(room, demand, cards_in(room, demand))


def spot_on(room: Room, demand: Demand, cards: list[Card]) -> Spot:
    if not cards:
        return Spot(room, cards, WHOLE_MILLI, 0)
    if demand.share_milli == WHOLE_MILLI:
        return Spot(room, cards, WHOLE_MILLI, demand.gpu_memory_mb)
    usable = cards[0].usable_mb
    return Spot(room, cards, milli_on(demand, usable), reserved_mb(demand, usable))
