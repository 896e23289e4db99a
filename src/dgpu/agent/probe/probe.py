"""What an agent may ask about the cards of its node.

All calls block (a driver in trouble can take seconds) and belong in a thread. A probe takes one call at a time:
a second caller waits for the first.

    ProbeError                 the probe as a whole gave no answer
    └── ProbeUnavailableError  this way of looking does not work on this machine: no driver, no tool, no permission
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec

from dgpu.core.model.ids import GpuId, LeaseId

# Per leased GPU, the processes that we started on it (empty while none is known). A GPU that is not a key is not
# leased.
BusyGpus = Mapping[GpuId, frozenset[int]]

# How near two cards are.
NVLINK = 100  # plus one for each link between the two
SWITCH = 20  # a common PCIe switch
NUMA = 10


ALL_NUMBERS = ("utilization", "memory", "temperature", "power")


class ProbeError(Exception):
    """One line for people."""


class ProbeUnavailableError(ProbeError):
    pass


class FoundGpu(msgspec.Struct, frozen=True, kw_only=True):
    id: GpuId  # the card's UUID
    index: int
    model: str
    memory_mb: int  # 0: the card does not say
    fault: str = ""  # empty: healthy
    near: tuple[tuple[GpuId, int], ...] = ()  # other cards, the nearer the higher
    fault_cause: str = ""  # core.health.Cause


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """A number is 0 where the card does not say; `untold` then names it."""

    gpu_id: GpuId
    utilization_percent: int = 0
    memory_used_mb: int = 0
    memory_foreign_mb: int = 0  # held by processes that are not ours
    temperature_c: int = 0
    power_w: int = 0
    fault: str = ""
    own_mb: tuple[tuple[int, int], ...] = ()  # of our processes, where the driver tells
    leases_mb: tuple[tuple[LeaseId, int], ...] = ()  # the same, by lease
    loaded_models: tuple[str, ...] = ()
    fault_cause: str = ""
    untold: tuple[str, ...] = ()  # of ALL_NUMBERS


class Examination(msgspec.Struct, frozen=True, kw_only=True):
    ok: bool
    words: str  # what was found, on one line


class Probe(Protocol):
    def list_gpus(self) -> list[FoundGpu]:
        """Looks anew, ordered by index. A card with a fault is listed with it; one that has left is not listed."""

    def sample(self, busy: BusyGpus) -> list[Sample]:
        """One sample per GPU of the last list, in its order."""

    def holders(self, gpu_id: GpuId) -> frozenset[int]:
        """Processes that hold memory on this GPU now. ProbeError: nobody can say.

        Compare with the processes that were started: a card that drives a display always has holders.
        """

    def examine(self, gpu_id: GpuId) -> Examination:
        """Asks the card anew, for a check. Faults that were of a moment are forgotten with it."""

    def program_xid(self, gpu_id: GpuId) -> int:
        """The last Xid that a program caused on this card since this was asked; 0: none, or nobody can say."""

    def close(self) -> None: ...
