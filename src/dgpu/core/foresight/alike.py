"""Groups nodes that are alike for a demand, so that an explanation checks each kind of node once."""

from __future__ import annotations

from collections.abc import Iterator

from dgpu.core.index.room import Room
from dgpu.core.model.demand import Demand
from dgpu.core.model.task import WHOLE_MILLI
from dgpu.core.state import ClusterState


def alike(state: ClusterState, demand: Demand) -> Iterator[tuple[Room, int]]:
    """One room of each kind, with the number of rooms of its kind. Rooms are alike only if they are in service and
    their GPUs are all of one kind, healthy and not shared. Every other room is its own kind.
    """
    if demand.constraints or demand.share_milli < WHOLE_MILLI:
        for room in state.rooms.by_node.values():
            yield room, 1
        return
    least_mb, counts_host = demand.gpu_memory_mb, bool(demand.cpus_milli or demand.ram_mb)
    kinds: dict[tuple[object, ...], list[Room]] = {}
    for room in state.rooms.by_node.values():
        cards = room.cards
        if (
            not room.ready
            or room.mixed
            or room.used
            or room.holds
            or len(cards) != len(room.gpu_ids)
            or not cards
        ):
            yield room, 1
            continue
        card = next(iter(cards.values()))
        if card.usable_mb < least_mb:  # too small, or partly used by other tasks
            yield room, 1
            continue
        kind: tuple[object, ...] = (
            len(room.idle),
            len(cards),
            card.model,
            card.usable_mb,
            card.parole,
            room.is_full,
        )
        if counts_host:
            node = state.nodes[room.node_id]
            kind += (room.cpus_free_milli, room.ram_free_mb, node.cpus_milli, node.ram_mb)
        kinds.setdefault(kind, []).append(room)
    for rooms in kinds.values():
        yield rooms[0], len(rooms)
