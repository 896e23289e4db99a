"""A demand: what a task asks of a node."""

from __future__ import annotations

from typing import Final, Protocol

import msgspec

from dgpu.core.task import PRIORITY_LEVELS, WHOLE_MILLI, Constraint, Shape

_TRUSTED_FROM: Final = PRIORITY_LEVELS["normal"]


class Demand(msgspec.Struct, frozen=True, kw_only=True, gc=False, cache_hash=True):
    """What a shape asks of one node. Shapes that differ in tenant, pool or priority only share a demand, but for
    tasks of low priority, which may have cards on parole too.
    """

    gpus: int
    gpu_models: tuple[str, ...] = ()  # alternatives; empty: any
    gpu_memory_mb: int = 0
    cpus_milli: int = 0
    ram_mb: int = 0
    share_milli: int = WHOLE_MILLI  # of one GPU; below 1,000 only with `gpus` = 1
    constraints: tuple[Constraint, ...] = ()
    model: str = ""
    parole: bool = False
    nodes: int = 1  # of a gang: so many nodes at once, each as above


class Asks(Protocol):
    """The part of a demand that decides how much of a card it takes."""

    @property
    def share_milli(self) -> int: ...

    @property
    def gpu_memory_mb(self) -> int: ...


def demand_of(shape: Shape) -> Demand:
    gpus = shape.gpus
    return Demand(
        gpus=gpus,
        gpu_models=shape.gpu_models if gpus else (),
        gpu_memory_mb=shape.gpu_memory_mb if gpus else 0,
        cpus_milli=shape.cpus_milli,
        ram_mb=shape.ram_mb,
        share_milli=shape.share_milli if gpus else WHOLE_MILLI,
        constraints=shape.constraints,
        model=shape.model if gpus else "",
        parole=gpus > 0 and shape.priority < _TRUSTED_FROM,
        nodes=shape.nodes,
    )
