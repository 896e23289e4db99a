"""Inputs and outputs of the lifecycle of leases."""

from __future__ import annotations

import enum

import msgspec

from dgpu.agent.gpu_use import GpuUse
from dgpu.agent.run.runner import RunEnd, RunnerWord, RunOrder, StopOrder
from dgpu.agent.workers.calls import CallOrder, ReturnedCall
from dgpu.agent.workers.words import EndWorker
from dgpu.core.model.ids import GpuId, LeaseId, TaskId


class LeaseState(enum.StrEnum):
    RECEIVED = "received"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    RELEASING = "releasing"
    ENDED = "ended"
    ACKED = "acked"


# -- inputs, beside the words of the runner


class Welcomed(msgspec.Struct, frozen=True, kw_only=True):
    """A scheduler has accepted the registration. Leases that it does not keep were placed elsewhere or have ended."""

    keep: frozenset[LeaseId]
    cluster_id: str = ""


class Ordered(msgspec.Struct, frozen=True, kw_only=True):
    starts: tuple[RunOrder, ...] = ()
    stops: tuple[tuple[LeaseId, str], ...] = ()  # with the reason: cancelled | timeout
    calls: tuple[CallOrder, ...] = ()


class Acked(msgspec.Struct, frozen=True, kw_only=True):
    started: tuple[LeaseId, ...] = ()
    finished: tuple[LeaseId, ...] = ()
    returned: tuple[LeaseId, ...] = ()


class ProgramFault(msgspec.Struct, frozen=True, kw_only=True):
    """The driver reports a program error on one of the lease's GPUs."""

    lease_id: LeaseId
    xid: int
    card_mb: int


class GpusReleased(msgspec.Struct, frozen=True, kw_only=True):
    released: tuple[
        tuple[LeaseId, tuple[GpuId, ...]], ...
    ]  # with the GPUs that did not free their memory in time
    faults: tuple[ProgramFault, ...] = ()


class OutputStored(msgspec.Struct, frozen=True, kw_only=True):
    """Stored by the scheduler, or dropped: in both cases it will not be requested again."""

    lease_ids: tuple[LeaseId, ...]


class MemorySeen(msgspec.Struct, frozen=True, kw_only=True):
    """The memory use of leases, each on the GPU where it uses most, and how busy their GPUs are, in percent."""

    leases_mb: tuple[tuple[LeaseId, int], ...]
    use: tuple[tuple[LeaseId, int], ...] = ()


class Woke(msgspec.Struct, frozen=True, kw_only=True):
    """`wake_at_ms` has come."""


LifecycleInput = (
    RunnerWord | Welcomed | Ordered | Acked | GpusReleased | OutputStored | MemorySeen | EndWorker | Woke
)

# -- outputs


class StartRuns(msgspec.Struct, frozen=True, kw_only=True):
    orders: tuple[RunOrder, ...]


class StopRuns(msgspec.Struct, frozen=True, kw_only=True):
    orders: tuple[StopOrder, ...]


class ThawRuns(msgspec.Struct, frozen=True, kw_only=True):
    lease_ids: tuple[LeaseId, ...]


class ForgetRuns(msgspec.Struct, frozen=True, kw_only=True):
    lease_ids: tuple[LeaseId, ...]


class CheckRelease(msgspec.Struct, frozen=True, kw_only=True):
    """Answered by GpusReleased, all together or one by one."""

    leases: tuple[tuple[LeaseId, tuple[GpuId, ...]], ...]
    until_ms: int


class KeepOutput(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt with output has ended: send its output to the scheduler."""

    lease_id: LeaseId
    task_id: TaskId
    attempt: int
    lost_bytes: int = 0  # the last bytes, for which the disk had no room
    output_bytes: int = 0  # in all


class DropOutput(msgspec.Struct, frozen=True, kw_only=True):
    """Cancels a KeepOutput: the attempt belongs to another cluster, and this scheduler must not get its output."""

    lease_id: LeaseId


class FinishedRun(msgspec.Struct, frozen=True, kw_only=True):
    end: RunEnd
    stuck: tuple[GpuId, ...] = ()
    peak_memory_mb: int = 0
    gpu_use: GpuUse = GpuUse()


class Report(msgspec.Struct, frozen=True, kw_only=True):
    started: tuple[tuple[LeaseId, int], ...] = ()
    finished: tuple[FinishedRun, ...] = ()
    returned: tuple[ReturnedCall, ...] = ()


LifecycleOutput = (
    StartRuns | StopRuns | ThawRuns | ForgetRuns | CheckRelease | KeepOutput | DropOutput | Report
)


class HeldRun(msgspec.Struct, frozen=True, kw_only=True):
    lease_id: LeaseId
    task_id: TaskId
    state: LeaseState
    attempt: int = 0
    nonce: str = ""
    cluster_id: str = ""
    worker_lease_id: LeaseId = LeaseId(0)  # of a call
