"""Does a node have room for a task, and which node is liked best?"""

from __future__ import annotations

import msgspec

from dgpu.core.room import Card, Room
from dgpu.core.task import Shape


class Demand(msgspec.Struct, frozen=True, kw_only=True, gc=False, cache_hash=True):
    """What a shape asks of one node. Shapes that differ in tenant, pool or priority only share a demand."""

    gpus: int
    gpu_models: tuple[str, ...]
    gpu_memory_mb: int
    cpus_milli: int
    ram_mb: int


def demand_of(shape: Shape) -> Demand:
    return Demand(
        gpus=shape.gpus,
        gpu_models=shape.gpu_models,
        gpu_memory_mb=shape.gpu_memory_mb if shape.gpus else 0,
        cpus_milli=shape.cpus_milli,
        ram_mb=shape.ram_mb,
    )


def rank(room: Room, demand: Demand, most_leases: int) -> int | None:
    """The smaller, the better; None: no room. Memory per GPU is not looked at here, for the rank itself tells it:
    with GPUs it is minus the free memory of the weakest card the task would get. So the node at the top of a
    ranking has the most memory to give, and serves demands that differ in memory alone.
    Without GPUs it is the number of leases: such tasks are spread.
    """
    if not room.ready or len(room.leases) >= most_leases:
        return None
    if demand.cpus_milli > room.cpus_free_milli and demand.cpus_milli:
        return None
    if demand.ram_mb > room.ram_free_mb and demand.ram_mb:
        return None
    gpus = demand.gpus
    if not gpus:
        return len(room.leases)
    idle = room.idle
    if len(idle) < gpus:
        return None
    if not demand.gpu_models:
        return idle[gpus - 1][0]
    for card in idle:
        if card[3] in demand.gpu_models:
            gpus -= 1
            if not gpus:
                return card[0]
    return None


def chosen_cards(room: Room, demand: Demand) -> list[Card]:
    """The cards a task would get: those with the most free memory."""
    if not demand.gpu_models:
        return room.idle[: demand.gpus]
    return [card for card in room.idle if card[3] in demand.gpu_models][: demand.gpus]


def has_memory(rank_value: int, demand: Demand) -> bool:
    return not demand.gpus or -rank_value >= demand.gpu_memory_mb
