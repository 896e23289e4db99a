"""Refusals are values: one type each, with its facts. `wire.problem` alone knows what they mean in HTTP."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from dgpu.core.ids import GpuId, LeaseId, NodeId, TaskId


class Rejection(msgspec.Struct, frozen=True, kw_only=True):
    code: ClassVar[str]


class AlreadySubmitted(Rejection, frozen=True, kw_only=True):
    """The same key with the same body: the first answer holds. Nothing is wrong, and nothing changes."""

    code: ClassVar[str] = "already_submitted"
    first_id: TaskId
    count: int
    created_at: int


class KeyReused(Rejection, frozen=True, kw_only=True):
    """An idempotency key came back with another body."""

    code: ClassVar[str] = "idempotency_key_reused"
    key: str


class NeverFits(Rejection, frozen=True, kw_only=True):
    """No registered node could run it even if it were empty; waiting cannot help."""

    code: ClassVar[str] = "never_fits"
    entry: int  # of the batch
    lacks: str  # gpus | gpu_model | gpu_memory_mb | cpus | ram_mb
    requested: int | str
    largest: int | str  # what the best node offers


class TimeoutTooLong(Rejection, frozen=True, kw_only=True):
    code: ClassVar[str] = "timeout_too_long"
    entry: int
    timeout_ms: int
    max_timeout_ms: int


class QueueFull(Rejection, frozen=True, kw_only=True):
    """Too many tasks wait already; more would cost memory without bound."""

    code: ClassVar[str] = "queue_full"
    waiting: int
    submitted: int
    limit: int


class UnknownTask(Rejection, frozen=True, kw_only=True):
    code: ClassVar[str] = "unknown_task"
    task_id: TaskId


class TaskEnded(Rejection, frozen=True, kw_only=True):
    """Cancelling what is over already."""

    code: ClassVar[str] = "task_ended"
    task_id: TaskId
    status: str


class UnknownNode(Rejection, frozen=True, kw_only=True):
    code: ClassVar[str] = "unknown_node"
    node_id: NodeId


class UnknownGpu(Rejection, frozen=True, kw_only=True):
    code: ClassVar[str] = "unknown_gpu"
    gpu_id: GpuId


class NodeBusy(Rejection, frozen=True, kw_only=True):
    """The node still holds leases, or is connected."""

    code: ClassVar[str] = "node_busy"
    node_id: NodeId
    leases: int
    status: str


class NodeNotOffline(Rejection, frozen=True, kw_only=True):
    """Only a node that cannot be reached may be given up."""

    code: ClassVar[str] = "node_not_offline"
    node_id: NodeId


class GpuClaimed(Rejection, frozen=True, kw_only=True):
    """Two nodes report a GPU of the same UUID."""

    code: ClassVar[str] = "gpu_claimed"
    gpu_id: GpuId
    node_id: NodeId
    holder: NodeId


class StaleLease(Rejection, frozen=True, kw_only=True):
    """A report on a lease that was released: its task may be leased elsewhere by now."""

    code: ClassVar[str] = "stale_lease"
    lease_id: LeaseId


class StorageFull(Rejection, frozen=True, kw_only=True):
    """The journal has no room for new tasks. Said by the service, before anything is decided."""

    code: ClassVar[str] = "storage_full"


class TooBusy(Rejection, frozen=True, kw_only=True):
    """More commands wait to be decided than may wait. Said by the service; asking again later helps."""

    code: ClassVar[str] = "too_busy"
    queued: int
