"""What happened. Events are the journal; their names and fields are a file format (see wire.upcast).

Fields are only ever added at the end, with a default.
"""

from __future__ import annotations

import msgspec

from dgpu.core.ids import NO_LEASE, GpuId, LeaseId, NodeId, TaskId
from dgpu.core.node import Gpu, Node
from dgpu.core.settings import Settings
from dgpu.core.task import TaskSpec, TaskStatus


class Event(msgspec.Struct, frozen=True, array_like=True, tag=True):
    at: int


class EpochBegan(Event, frozen=True, array_like=True, tag=True):
    epoch: int
    settings: Settings


class TasksSubmitted(Event, frozen=True, array_like=True, tag=True):
    first_id: TaskId  # ids are consecutive over all entries
    entries: tuple[tuple[int, TaskSpec], ...]  # timeouts are resolved: never None
    idempotency_key: str = ""
    fingerprint: str = ""


class TaskPlaced(Event, frozen=True, array_like=True, tag=True):
    task_id: TaskId
    lease_id: LeaseId
    attempt: int
    node_id: NodeId
    gpu_ids: tuple[GpuId, ...]


class TaskStarted(Event, frozen=True, array_like=True, tag=True):
    task_id: TaskId
    lease_id: LeaseId
    started_at: int


class TaskFinished(Event, frozen=True, array_like=True, tag=True):
    """The end of a task. Its lease, if any, is released with it."""

    task_id: TaskId
    lease_id: LeaseId
    status: TaskStatus
    finished_at: int
    exit_code: int | None = None
    reason: str = ""
    error: str = ""


class TaskRequeued(Event, frozen=True, array_like=True, tag=True):
    """An attempt is over, the task waits again. Its lease is released."""

    task_id: TaskId
    lease_id: LeaseId
    eligible_at: int
    counted: bool
    reason: str
    error: str = ""


class TaskCancelRequested(Event, frozen=True, array_like=True, tag=True):
    task_id: TaskId
    lease_id: LeaseId = NO_LEASE


class TasksCancelled(Event, frozen=True, array_like=True, tag=True):
    """Waiting tasks, cancelled together."""

    task_ids: tuple[TaskId, ...]


class TasksForgotten(Event, frozen=True, array_like=True, tag=True):
    task_ids: tuple[TaskId, ...]


class KeysForgotten(Event, frozen=True, array_like=True, tag=True):
    """Idempotency keys given before this time."""

    before: int


class NodeRegistered(Event, frozen=True, array_like=True, tag=True):
    node: Node
    gpus: tuple[Gpu, ...]  # the whole list; what is missing from it has gone


class InventoryChanged(Event, frozen=True, array_like=True, tag=True):
    node_id: NodeId
    gpus: tuple[Gpu, ...]


class NodeLost(Event, frozen=True, array_like=True, tag=True):
    node_id: NodeId
    reason: str


class NodeDraining(Event, frozen=True, array_like=True, tag=True):
    node_id: NodeId
    reason: str


class NodeResumed(Event, frozen=True, array_like=True, tag=True):
    node_id: NodeId


class NodeRemoved(Event, frozen=True, array_like=True, tag=True):
    node_id: NodeId


class ObservationChanged(Event, frozen=True, array_like=True, tag=True):
    gpu_id: GpuId
    foreign_mb: int
    fault: str
