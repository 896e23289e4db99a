"""A lease: a granted placement. Its id is the fence that tells old reports from new ones."""

from __future__ import annotations

import msgspec

from dgpu.core.ids import GpuId, LeaseId, NodeId, TaskId


class Lease(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    id: LeaseId
    task_id: TaskId
    node_id: NodeId
    gpu_ids: tuple[GpuId, ...] = ()
    cpus_milli: int = 0
    ram_mb: int = 0
    granted_at: int = 0
    started: bool = False
