"""The interface of runners of tasks: processes, nothing at all (null), later containers and warm workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from dgpu.core.model.ids import GpuId, LeaseId, NodeId, TaskId
from dgpu.core.model.task import Outcome, WorkerSetup


class RunOrder(msgspec.Struct, frozen=True, kw_only=True):
    lease_id: LeaseId
    task_id: TaskId
    attempt: int  # of a rank of a gang: wire.ranks.run_number
    gpu_ids: tuple[GpuId, ...] = ()
    detail: bytes = b"{}"  # core.task.TaskDetail as JSON
    timeout_ms: int = 0
    gpu_memory_mb: int = 0  # held on each GPU; 0: all that is free
    share_milli: int = 1_000
    kill_outgrown: bool = False
    env: dict[str, str] = {}  # from the scheduler, in addition to those of the detail
    nonce: str = ""  # of the epoch that granted the lease; empty: an earlier version
    cluster_id: str = ""
    tenant: str = ""
    user: str | None = None  # see agent.accounts; None: the task runs as the agent's own user
    ram_mb: int = 0  # 0: no limit
    cpus_milli: int = 0
    secret_files: dict[str, bytes] = {}  # by name, in clear
    upload: str = ""  # sha256 of an archive with the content of its directory; empty: none
    worker: WorkerSetup | None = None  # of a worker, which runs calls
    server: str = ""  # where programs of the task find the scheduler; empty: not known

    def __repr__(self) -> str:
        """Without variables and secrets, because it may reach a log."""
        return f"RunOrder(lease_id={self.lease_id}, task_id={self.task_id}, attempt={self.attempt})"

    def is_same_run(self, other: RunOrder) -> bool:
        """False for a lease of another journal with the same number. Values that an earlier version did not record are
        not compared.
        """
        return (
            self.task_id == other.task_id
            and self.attempt == other.attempt
            and (self.nonce == other.nonce or not (self.nonce and other.nonce))
        )


class StopOrder(msgspec.Struct, frozen=True, kw_only=True):
    lease_id: LeaseId
    grace_ms: int  # 0: none; else the keeper uses the grace of the task
    cause: Outcome  # stopped, timeout or out_of_memory
    warned: bool = False  # the task may run again: its own signal comes before TERM


class RunEnd(msgspec.Struct, frozen=True, kw_only=True):
    lease_id: LeaseId
    outcome: Outcome
    at_ms: int  # on the node's clock since boot
    exit_code: int = 0
    signal: int = 0
    error: str = ""
    output_bytes: int = 0  # in its files
    output_lost: int = 0  # bytes for which the disk had no room, up to the end
    unkilled: int = 0  # processes that could not be killed
    cpu_ms: int = 0  # of its main process and those that it waited for
    rss_mb: int = 0  # of the largest of them


class KnownRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that the runner still holds from an earlier agent process."""

    lease_id: LeaseId
    task_id: TaskId
    attempt: int
    gpu_ids: tuple[GpuId, ...] = ()
    started_at_ms: int = 0  # 0: was never started
    frozen: bool = False
    end: RunEnd | None = None
    max_mb: int = 0  # of GPU memory; with more, the run is stopped
    nonce: str = ""
    cluster_id: str = ""
    worker_silence_ms: int = 0  # of a worker: without a heartbeat for this time, it is ended; 0: no worker


# Messages of a runner. Batches, in the order of events.


class RunsListed(msgspec.Struct, frozen=True, kw_only=True):
    """The first message, repeated after the runner was replaced: a run that is not listed has ended."""

    runs: tuple[KnownRun, ...]


class RunsStarted(msgspec.Struct, frozen=True, kw_only=True):
    started: tuple[tuple[LeaseId, int], ...]  # with the time on the node's clock since boot


class RunsEnded(msgspec.Struct, frozen=True, kw_only=True):
    ended: tuple[RunEnd, ...]


class RunsFrozen(msgspec.Struct, frozen=True, kw_only=True):
    lease_ids: tuple[LeaseId, ...]


class RunnerLost(msgspec.Struct, frozen=True, kw_only=True):
    """It is being replaced; a list follows."""


class RunnerFit(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the runner can take orders. Sent on a change; a runner is fit at first."""

    unfit: str  # why it cannot; empty: it can


RunnerWord = RunsListed | RunsStarted | RunsEnded | RunsFrozen | RunnerLost | RunnerFit


class Runner(Protocol):
    """One per agent host, shared by its nodes. Never blocks; answers are messages to the node."""

    async def open(self) -> None:
        """Connects; each node gets its list before this returns."""

    def start(self, node_id: NodeId, orders: Sequence[RunOrder]) -> None: ...

    def stop(self, orders: Sequence[StopOrder]) -> None: ...

    def thaw(self, lease_ids: Sequence[LeaseId]) -> None: ...

    def forget(self, lease_ids: Sequence[LeaseId]) -> None:
        """These leases are no longer needed: deletes their records and directories."""

    def heard(self, node_id: NodeId, *, at_ms: int, lease_ms: int, action: str) -> None:
        """A scheduler was certainly in contact at this time; the task lease counts from it."""

    def owners(self) -> Mapping[int, LeaseId | None]:
        """All processes of all tasks with their lease, None if it is not certain. May block: use a thread."""

    def ports_of(self, node_id: NodeId, lease_id: LeaseId) -> Mapping[int, int] | None:
        """The port of the node for each port of a run; None: the node has no such run."""

    def worker_address(self, lease_id: LeaseId) -> tuple[str, int] | None:
        """The socket of a worker and the user of its process; None: the run is no worker."""

    async def close(self, *, stop_tasks: bool) -> None: ...
