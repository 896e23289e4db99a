"""The interface of probes, which read the GPUs of a node.

All calls block (a broken driver can take seconds) and belong in a thread. A probe takes one call at a time:
a second caller waits for the first.

    ProbeError                 the whole probe gave no answer
    └── ProbeUnavailableError  this probe does not work on this machine: no driver, no tool, no permission
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec

from dgpu.core.model.ids import GpuId, LeaseId

# Per leased GPU, the processes of its tasks (empty while none is known). A GPU that is not a key is not leased.
BusyGpus = Mapping[GpuId, frozenset[int]]

# Proximity of two GPUs.
NVLINK = 100  # plus one for each link between the two
SWITCH = 20  # a common PCIe switch
NUMA = 10


ALL_NUMBERS = ("utilization", "memory", "temperature", "power")


class ProbeError(Exception):
    """One line for people."""


class ProbeUnavailableError(ProbeError):
    pass


class FoundGpu(msgspec.Struct, frozen=True, kw_only=True):
    id: GpuId  # the UUID
    index: int
    model: str
    memory_mb: int  # 0: unknown
    fault: str = ""  # empty: healthy
    near: tuple[tuple[GpuId, int], ...] = ()  # other GPUs with their proximity, higher is nearer
    fault_cause: str = ""  # core.health.Cause


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """A number that the GPU does not report is 0 and named in `untold`."""

    gpu_id: GpuId
    utilization_percent: int = 0
    memory_used_mb: int = 0
    memory_foreign_mb: int = 0  # used by processes outside dgpu
    temperature_c: int = 0
    power_w: int = 0
    fault: str = ""
    own_mb: tuple[tuple[int, int], ...] = ()  # by pid, for processes of tasks, if the driver reports it
    leases_mb: tuple[tuple[LeaseId, int], ...] = ()  # the same, by lease
    loaded_models: tuple[str, ...] = ()
    fault_cause: str = ""
    untold: tuple[str, ...] = ()  # of ALL_NUMBERS


class Examination(msgspec.Struct, frozen=True, kw_only=True):
    ok: bool
    words: str  # the result on one line


class Probe(Protocol):
    def list_gpus(self) -> list[FoundGpu]:
        """Lists the GPUs again, ordered by index. A GPU with a fault is listed with it; a removed GPU is not listed."""

    def sample(self, busy: BusyGpus) -> list[Sample]:
        """One sample per GPU of the last list, in its order."""

    def holders(self, gpu_id: GpuId) -> frozenset[int]:
        """Processes that hold memory on this GPU now. ProbeError: unknown.

        Compare with the started processes: a GPU that drives a display always has holders.
        """

    def examine(self, gpu_id: GpuId) -> Examination:
        """Reads the GPU again, for a check. Momentary faults are cleared."""

    def program_xid(self, gpu_id: GpuId) -> int:
        """The last Xid caused by a program on this GPU since the previous call; 0: none or unknown."""

    def close(self) -> None: ...
