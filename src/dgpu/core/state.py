"""The state: flat dicts of frozen values and a few numbers. Indexes are derived from them and never in the digest."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from dgpu.core.idempotency import IdempotencyKey
from dgpu.core.ids import GpuId, LeaseId, NodeId, ShapeId, TaskId
from dgpu.core.lease import Lease
from dgpu.core.node import Gpu, GpuStatus, Node
from dgpu.core.policy.fit import Demand
from dgpu.core.room import STATUSES
from dgpu.core.rooms import Rooms, status_of
from dgpu.core.settings import Settings
from dgpu.core.task import Shape, Task, TaskStatus
from dgpu.core.waiting import Waiting


class Parts(NamedTuple):
    """All of a state that is not derived: what a snapshot holds."""

    tasks: dict[TaskId, Task]
    shapes: dict[ShapeId, Shape]
    nodes: dict[NodeId, Node]
    gpus: dict[GpuId, Gpu]
    leases: dict[LeaseId, Lease]
    keys: dict[str, IdempotencyKey]
    settings: Settings
    epoch: int
    next_task_id: TaskId
    next_lease_id: LeaseId
    next_shape_id: ShapeId
    last_at: int


class ClusterState:
    __slots__ = (
        "ended",
        "epoch",
        "expiring",
        "fits_empty",
        "gpus",
        "keys",
        "last_at",
        "leases",
        "next_lease_id",
        "next_shape_id",
        "next_task_id",
        "nodes",
        "rooms",
        "settings",
        "shapes",
        "tasks",
        "waiting",
    )

    def __init__(self) -> None:
        self.tasks: dict[TaskId, Task] = {}
        self.shapes: dict[ShapeId, Shape] = {}
        self.nodes: dict[NodeId, Node] = {}
        self.gpus: dict[GpuId, Gpu] = {}
        self.leases: dict[LeaseId, Lease] = {}
        self.keys: dict[str, IdempotencyKey] = {}  # oldest first
        self.settings = Settings()
        self.epoch = 0
        self.next_task_id = TaskId(1)
        self.next_lease_id = LeaseId(1)
        self.next_shape_id = ShapeId(1)
        self.last_at = 0
        self._derive()

    @classmethod
    def from_parts(cls, parts: Parts) -> ClusterState:
        """Takes the dicts over; the caller lets go of them."""
        state = cls()
        for name, part in zip(Parts._fields, parts, strict=True):
            setattr(state, name, part)
        by_age = sorted(state.keys.items(), key=lambda item: (item[1].created_at, item[1].first_id))
        state.keys = dict(by_age)
        state.rebuild()
        return state

    def parts(self) -> Parts:
        return Parts._make(getattr(self, name) for name in Parts._fields)

    def fork(self) -> ClusterState:
        """A state of its own: dicts are copied, values are shared."""
        twin = ClusterState.__new__(ClusterState)
        for name, part in zip(Parts._fields, self.parts(), strict=True):
            setattr(twin, name, part.copy() if isinstance(part, dict) else part)
        twin.waiting = self.waiting.copy()
        twin.rooms = self.rooms.copy(twin.nodes, twin.gpus, twin.leases)
        twin.ended = self.ended.copy()
        twin.expiring = self.expiring.copy()
        twin.fits_empty = self.fits_empty.copy()
        return twin

    def rebuild(self) -> None:
        """Derive all indexes anew from the flat dicts."""
        self._derive()
        self.rooms.rebuild()
        for shape_id, shape in self.shapes.items():
            self.waiting.open_line(shape_id, shape)
        for task_id in sorted(self.tasks):
            task = self.tasks[task_id]
            self.waiting.lines[task.shape_id].uses += 1
            if task.status is TaskStatus.PENDING:
                self.waiting.add(task.shape_id, task_id, task.eligible_at)
            elif task.status is TaskStatus.RUNNING:
                if self.leases[task.lease_id].started:
                    self.note_expiry(task)
            else:
                self.ended.append((task.ended_at, task_id))
        heapify(self.ended)

    def _derive(self) -> None:
        self.waiting = Waiting()
        self.rooms = Rooms(self.nodes, self.gpus, self.leases, self.settings.most_leases)
        self.ended: list[tuple[int, TaskId]] = []  # heap: (ended_at, id) of tasks that are over
        self.expiring: list[tuple[int, TaskId, LeaseId]] = []  # heap: ends of allocations, stale ones too
        self.fits_empty: dict[
            Demand, bool
        ] = {}  # could a registered node hold it when empty? Forgotten when one changes

    # what others ask

    def node_gpus(self, node_id: NodeId) -> tuple[Gpu, ...]:
        """By index. A card that is gone but still leased is among them."""
        room = self.rooms.by_node.get(node_id)
        return () if room is None else tuple(self.gpus[gpu_id] for gpu_id in room.gpu_ids)

    def node_leases(self, node_id: NodeId) -> tuple[Lease, ...]:
        room = self.rooms.by_node.get(node_id)
        return () if room is None else tuple(self.leases[lease_id] for lease_id in sorted(room.leases))

    def gpu_lease(self, gpu_id: GpuId) -> Lease | None:
        lease_id = self.rooms.holders.get(gpu_id)
        return None if lease_id is None else self.leases[lease_id]

    def gpu_counts(self) -> dict[GpuStatus, int]:
        return dict(zip(STATUSES, self.rooms.counts, strict=True))

    @property
    def waiting_count(self) -> int:
        return self.waiting.count

    @property
    def running_count(self) -> int:
        return len(self.leases)

    @property
    def ended_count(self) -> int:
        return len(self.tasks) - self.waiting.count - len(self.leases)

    # time

    def note_expiry(self, task: Task) -> None:
        if task.allocation and task.timeout_ms:
            heappush(self.expiring, (task.started_at + task.timeout_ms, task.id, task.lease_id))
            if len(self.expiring) > 2 * len(self.leases) + 64:
                self.expiring = [entry for entry in self.expiring if entry[2] in self.leases]
                heapify(self.expiring)

    def expired(self, at: int) -> Iterator[Task]:
        """Allocations whose time is over, first to end first."""
        if not self.expiring or self.expiring[0][0] > at:
            return
        for _, task_id, lease_id in sorted(entry for entry in self.expiring if entry[0] <= at):
            if lease_id in self.leases:
                yield self.tasks[task_id]

    def next_expiry_at(self) -> int | None:
        heap = self.expiring
        while heap and heap[0][2] not in self.leases:
            heappop(heap)
        return heap[0][0] if heap else None


def gpu_status(state: ClusterState, gpu: Gpu) -> GpuStatus:
    return status_of(gpu, state.nodes[gpu.node_id], leased=gpu.id in state.rooms.holders)


def next_wake_at(state: ClusterState) -> int | None:
    """When the next back-off is over: the service runs a pass then."""
    return state.waiting.next_eligible_at


def next_tick_at(state: ClusterState) -> int | None:
    """When the next allocation's time is over: the service sends a Tick then."""
    return state.next_expiry_at()


def pass_due(state: ClusterState) -> bool:
    """Did anything change since the last pass that could let a task in?"""
    return state.waiting.any_awake or bool(state.waiting.count and state.rooms.improved)
