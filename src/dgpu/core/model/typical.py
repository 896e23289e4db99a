"""The tasks we know, in short: what `placement: pack` goes by (see rules.fragment)."""

from __future__ import annotations

import msgspec

from dgpu.core.model.node import Kind


class TypicalShape(
    msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True, gc=False, order=True
):
    """What a table remembers of a demand: its GPU side."""

    gpus: int
    share_milli: int
    gpu_models: tuple[str, ...]
    gpu_memory_mb: int
    weight: int  # per mille of all tasks with GPUs
    parole: bool = False


class Typical(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """The tasks we know, in short. Part of the state, for choices depend on it."""

    shapes: tuple[TypicalShape, ...] = ()  # heaviest first
    cpus_milli_per_gpu: int = 0  # what the mean GPU in use brings along; 0: not counted
    ram_mb_per_gpu: int = 0
    prices: tuple[tuple[Kind, int], ...] = ()  # per mille, for kinds that some tasks insist on
    counted: int = 0  # tasks it was made of
    next_id: int = 0  # of the task that came next: tells how many came since
