"""The rooms that have GPUs left, or a part of one. In a full cluster they are few, and no larger index need be asked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from dgpu.core.index.room import Room
from dgpu.core.model.demand import Demand
from dgpu.core.model.ids import NodeId
from dgpu.core.model.task import WHOLE_MILLI
from dgpu.core.rules.fit import rank

FEW_ROOMS: Final = 8  # are looked at one by one; more are for a ranking


class Giving:
    __slots__ = ("_parts", "_whole")

    def __init__(self) -> None:
        self._whole: dict[NodeId, Room] = {}  # with idle cards
        self._parts: dict[NodeId, Room] = {}  # with nothing but parts of cards

    def copy(self, rooms: Mapping[NodeId, Room]) -> Giving:
        twin = Giving()
        twin._whole = {node_id: rooms[node_id] for node_id in self._whole}
        twin._parts = {node_id: rooms[node_id] for node_id in self._parts}
        return twin

    def note(self, room: Room) -> None:
        """It is new or changed."""
        node_id = room.node_id
        if room.idle and room.ready:
            self._whole[node_id] = room
            self._parts.pop(node_id, None)
            return
        self._whole.pop(node_id, None)
        if room.parts and room.ready:
            self._parts[node_id] = room
        else:
            self._parts.pop(node_id, None)

    def fitting(self, demand: Demand, most_leases: int) -> list[Room] | None:
        """All rooms that have room for it, the best liked first; None if too many would have to be asked, or the
        demand is for no GPU.
        """
        if not demand.gpus or len(self._whole) > FEW_ROOMS:
            return None
        if demand.share_milli == WHOLE_MILLI:
            return fitting(self._whole.values(), demand, most_leases)
        if len(self._whole) + len(self._parts) > FEW_ROOMS:
            return None
        return fitting((*self._whole.values(), *self._parts.values()), demand, most_leases)


def fitting(rooms: Iterable[Room], demand: Demand, most_leases: int) -> list[Room]:
    """Those of a few rooms that have room for it, the best liked first: as a ranking of all would have them."""
    found: list[tuple[int, NodeId, Room]] = []
    for room in rooms:
        value = rank(room, demand, most_leases)
        if value is not None:
            found.append((value, room.node_id, room))
    if len(found) == 1:  # mostly
        return [found[0][2]]
    found.sort()
    return [each[2] for each in found]
