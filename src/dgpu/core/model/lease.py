"""A lease: a granted placement. Its id is the fence that separates stale reports from current ones."""

from __future__ import annotations

import msgspec

from dgpu.core.model.ids import NO_LEASE, NO_TASK, GpuId, LeaseId, NodeId, TaskId


class Lease(
    msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True, omit_defaults=True, gc=False
):
    id: LeaseId
    task_id: TaskId
    node_id: NodeId
    gpu_ids: tuple[GpuId, ...] = ()
    cpus_milli: int = 0
    ram_mb: int = 0
    granted_at: int = 0
    started: bool = False
    stop_for: TaskId = NO_TASK  # for a stop that returns quota: the task that waits for it
    stopping: str = ""  # why its node must end it; empty: no such order. See events.TaskStopRequested
    share_milli: int = 1_000  # of each GPU; below 1,000 other tasks may share it
    gpu_memory_mb: int = 0  # promised on each GPU; 0: an exclusive task has all free memory

    rank: int = 0  # of a gang
    ended: bool = False  # this rank has ended; its GPUs are freed together with those of the others
    nonce: str = ""  # of the epoch that granted it; empty: granted by a version without nonces
    expected_ms: int = 0  # without a time limit: how long such tasks took when it was granted; 0: unknown
    worker: LeaseId = NO_LEASE  # of a function call: the lease of the worker that runs it

    @property
    def gpu_milli(self) -> int:
        """The amount that counts for quota, limits and fair share."""
        return len(self.gpu_ids) * self.share_milli
