"""A spot: the node and the GPUs that a task would get."""

from __future__ import annotations

from dgpu.core.index.room import Card, Room
from dgpu.core.model.demand import Demand
from dgpu.core.model.task import WHOLE_MILLI
from dgpu.core.rules.fit import cards_in, milli_on, reserved_mb


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
