"""A summary of the known tasks, which `placement: pack` uses (see rules.fragment)."""

from __future__ import annotations

import msgspec

from dgpu.core.model.node import Kind


class TypicalShape(
    msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True, gc=False, order=True
):
    """The GPU part of a demand, as stored in a table."""

    gpus: int
    share_milli: int
    gpu_models: tuple[str, ...]
    gpu_memory_mb: int
    weight: int  # per mille of all tasks with GPUs
    parole: bool = False


class Typical(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A summary of the known tasks. Part of the state, because choices depend on it."""

    shapes: tuple[TypicalShape, ...] = ()  # heaviest first
    cpus_milli_per_gpu: int = 0  # mean per used GPU; 0: not counted
    ram_mb_per_gpu: int = 0
    prices: tuple[tuple[Kind, int], ...] = ()  # per mille, for kinds that some tasks require
    counted: int = 0  # number of tasks it was computed from
    next_id: int = 0  # id of the next task at that time: shows how many came since
