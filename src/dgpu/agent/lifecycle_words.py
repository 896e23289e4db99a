"""What the lifecycle of leases is told, and what it asks for."""

from __future__ import annotations

import enum

import msgspec

from dgpu.agent.run.runner import RunEnd, RunnerWord, RunOrder, StopOrder
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
    """A scheduler knows us again. What it does not keep was given away, or has long ended for it."""

    keep: frozenset[LeaseId]
    cluster_id: str = ""


class Ordered(msgspec.Struct, frozen=True, kw_only=True):
    starts: tuple[RunOrder, ...] = ()
    stops: tuple[tuple[LeaseId, str], ...] = ()  # with the reason: cancelled | timeout


class Acked(msgspec.Struct, frozen=True, kw_only=True):
    started: tuple[LeaseId, ...] = ()
    finished: tuple[LeaseId, ...] = ()


class ProgramFault(msgspec.Struct, frozen=True, kw_only=True):
    """The driver says that a program went wrong on one of the lease's cards."""

    lease_id: LeaseId
    xid: int
    card_mb: int


class GpusReleased(msgspec.Struct, frozen=True, kw_only=True):
    released: tuple[
        tuple[LeaseId, tuple[GpuId, ...]], ...
    ]  # with the GPUs that did not, in spite of the time given
    faults: tuple[ProgramFault, ...] = ()


class OutputStored(msgspec.Struct, frozen=True, kw_only=True):
    """At the scheduler, or dropped: either way nobody will ask for it again."""

    lease_ids: tuple[LeaseId, ...]


class MemorySeen(msgspec.Struct, frozen=True, kw_only=True):
    """What leases use, each on the GPU where it uses most."""

    leases_mb: tuple[tuple[LeaseId, int], ...]


class Woke(msgspec.Struct, frozen=True, kw_only=True):
    """`wake_at_ms` has come."""


LifecycleInput = RunnerWord | Welcomed | Ordered | Acked | GpusReleased | OutputStored | MemorySeen | Woke

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
    """An attempt with output has ended: its output is to be brought to the scheduler."""

    lease_id: LeaseId
    task_id: TaskId
    attempt: int
    lost_bytes: int = 0  # its very last, for which the disk had no room
    output_bytes: int = 0  # in all


class DropOutput(msgspec.Struct, frozen=True, kw_only=True):
    """Takes a KeepOutput back: the attempt is of another cluster, which this scheduler must not hear of."""

    lease_id: LeaseId


class FinishedRun(msgspec.Struct, frozen=True, kw_only=True):
    end: RunEnd
    stuck: tuple[GpuId, ...] = ()
    peak_memory_mb: int = 0


class Report(msgspec.Struct, frozen=True, kw_only=True):
    started: tuple[tuple[LeaseId, int], ...] = ()
    finished: tuple[FinishedRun, ...] = ()


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
