"""A demand: the resources that a task needs on a node."""

from __future__ import annotations

from typing import Final, Protocol

from dgpu.core.model.task import PRIORITY_LEVELS, WHOLE_MILLI, Constraint, Shape

_TRUSTED_FROM: Final = PRIORITY_LEVELS["normal"]


class Demand:
    """The resources that a shape needs on one node. Shapes that differ only in tenant, pool or priority share a demand,
    except tasks of low priority, which may also use GPUs on parole. Treated as frozen; equal demands are one key.
    """

    __slots__ = (
        "_hash",
        "_key",
        "constraints",
        "cpus_milli",
        "gpu_memory_mb",
        "gpu_models",
        "gpus",
        "model",
        "nodes",
        "parole",
        "ram_mb",
        "share_milli",
        "whole_milli",
    )

    def __init__(
        self,
        *,
        gpus: int,
        gpu_models: tuple[str, ...] = (),
        gpu_memory_mb: int = 0,
        cpus_milli: int = 0,
        ram_mb: int = 0,
        share_milli: int = WHOLE_MILLI,
        constraints: tuple[Constraint, ...] = (),
        model: str = "",
        parole: bool = False,
        nodes: int = 1,
    ) -> None:
        self.gpus = gpus
        self.gpu_models = gpu_models  # alternatives; empty: any
        self.gpu_memory_mb = gpu_memory_mb
        self.cpus_milli = cpus_milli
        self.ram_mb = ram_mb
        self.share_milli = share_milli  # of one GPU; below 1,000 only with `gpus` = 1
        self.constraints = constraints
        self.model = model
        self.parole = parole
        self.nodes = nodes  # in a gang: number of nodes at once, each with the resources above
        self.whole_milli = (
            gpus * nodes * WHOLE_MILLI if share_milli == WHOLE_MILLI else 0
        )  # of whole GPUs, on all nodes
        numbers = (gpus, nodes, share_milli, gpu_memory_mb, cpus_milli, ram_mb)
        self._key: tuple[object, ...] = (*numbers, gpu_models, constraints, model, parole)
        self._hash = hash(self._key)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Demand) and self._key == other._key)

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"Demand{self._key}"

    def but(
        self,
        *,
        nodes: int | None = None,
        gpu_models: tuple[str, ...] | None = None,
        gpu_memory_mb: int | None = None,
        cpus_milli: int | None = None,
        ram_mb: int | None = None,
        constraints: tuple[Constraint, ...] | None = None,
        model: str | None = None,
        parole: bool | None = None,
    ) -> Demand:
        return Demand(
            gpus=self.gpus,
            gpu_models=self.gpu_models if gpu_models is None else gpu_models,
            gpu_memory_mb=self.gpu_memory_mb if gpu_memory_mb is None else gpu_memory_mb,
            cpus_milli=self.cpus_milli if cpus_milli is None else cpus_milli,
            ram_mb=self.ram_mb if ram_mb is None else ram_mb,
            share_milli=self.share_milli,
            constraints=self.constraints if constraints is None else constraints,
            model=self.model if model is None else model,
            parole=self.parole if parole is None else parole,
            nodes=self.nodes if nodes is None else nodes,
        )


class Asks(Protocol):
    """The part of a demand that determines how much of a GPU it takes."""

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
