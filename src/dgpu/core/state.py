"""The state: flat dicts of frozen values and a few numbers. Indexes are derived from them and never in the digest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import Final

from dgpu.core.index.account import Account, Accounts
from dgpu.core.index.bookings import Bookings
from dgpu.core.index.cards import status_of
from dgpu.core.index.crews import Crews
from dgpu.core.index.line import KnownShape
from dgpu.core.index.queue import Queue
from dgpu.core.index.room import STATUSES
from dgpu.core.index.rooms import Rooms
from dgpu.core.model.app import App
from dgpu.core.model.demand import Demand
from dgpu.core.model.dependencies import Awaited, Dependents
from dgpu.core.model.estimates import Estimate
from dgpu.core.model.gang import Gang
from dgpu.core.model.health import GpuHealth, due_at
from dgpu.core.model.idempotency import IdempotencyKey, KeyRing, pack
from dgpu.core.model.ids import GpuId, LeaseId, NodeId, SecretId, ShapeId, TaskId, TenantId, TokenId
from dgpu.core.model.lease import Lease
from dgpu.core.model.node import Gpu, GpuStatus, Node
from dgpu.core.model.reservation import Hold, Reservation
from dgpu.core.model.run_times import RunTimes
from dgpu.core.model.secrets import Secret
from dgpu.core.model.service import Service
from dgpu.core.model.settings import Settings
from dgpu.core.model.task import Pool, Shape, Task, TaskStatus
from dgpu.core.model.tenant import Tenant
from dgpu.core.model.tokens import Token
from dgpu.core.model.typical import Typical
from dgpu.core.model.usage import Meter, Usage, month_of
from dgpu.core.model.wall_span import WallSpan, newest_span
from dgpu.core.model.worker import LoadTime, Worker, next_idle_at
from dgpu.core.parts import PART_NAMES, Parts
from dgpu.core.rules.durations import time_class

# Fields derived from the parts: first those that a fork copies, then those that a fork links to its own parts.
_COPIED: Final = (
    "away",
    "dependents",
    "ended",
    "expiring",
    "fits_empty",
    "health_at",
    "key_ring",
    "reclaims",
    "stirred",
)
NOT_COMPUTED: Final = -1  # in place of a time
_LINKED: Final = ("accounts", "bookings", "crews", "queue", "rooms")


class ClusterState:
    __slots__ = (*PART_NAMES, *_COPIED, *_LINKED)

    def __init__(self) -> None:
        self.tasks: dict[TaskId, Task] = {}
        self.shapes: dict[ShapeId, Shape] = {}
        self.nodes: dict[NodeId, Node] = {}
        self.gpus: dict[GpuId, Gpu] = {}
        self.leases: dict[LeaseId, Lease] = {}
        # From a snapshot of an earlier version, until `adopt_old_keys`.
        self.keys: dict[str, IdempotencyKey] = {}
        self.key_ring = KeyRing()
        self.settings = Settings()
        self.epoch = 0
        self.next_task_id = TaskId(1)
        self.next_lease_id = LeaseId(1)
        self.next_shape_id = ShapeId(1)
        self.last_at = 0
        self.health: dict[GpuId, GpuHealth] = {}
        self.typical = Typical()
        self.estimates: dict[str, Estimate] = {}
        self.after: dict[TaskId, Awaited] = {}
        self.gangs: dict[TaskId, Gang] = {}
        self.quota = self.settings.quota
        self.tenants: dict[TenantId, Tenant] = {}
        self.usages: dict[TenantId, Usage] = {}
        self.meter = Meter()
        self.run_times: dict[str, RunTimes] = {}
        self.reservations: dict[TaskId, Reservation] = {}
        self.cluster_id = ""
        self.nonce = ""
        self.nonces: dict[int, str] = {}
        self.wall: dict[int, WallSpan] = {}
        self.no_pass_before = 0
        self.tokens: dict[TokenId, Token] = {}
        self.secrets: dict[SecretId, Secret] = {}
        self.services: dict[str, Service] = {}
        self.alert_records: dict[str, bytes] = {}
        self.apps: dict[str, App] = {}
        self.workers: dict[TaskId, Worker] = {}
        self.load_times: dict[str, LoadTime] = {}
        self._derive()

    @classmethod
    def from_parts(cls, parts: Parts) -> ClusterState:
        """Takes over the dicts; the caller must not use them afterwards."""
        state = cls()
        for name in PART_NAMES:
            setattr(state, name, getattr(parts, name))
        state.rebuild()
        return state

    def adopt_old_keys(self) -> None:
        """Adopts idempotency keys from a snapshot of an earlier version."""
        for key, old in sorted(self.keys.items(), key=lambda item: (item[1].created_at, item[1].first_id)):
            packed = pack(
                key, first_id=old.first_id, count=old.count, at=old.created_at, fingerprint=old.fingerprint
            )
            self.key_ring.add(packed)
        self.keys = {}

    def parts(self) -> Parts:
        return Parts(**{name: getattr(self, name) for name in PART_NAMES})

    def fork(self) -> ClusterState:
        """A separate state: dicts are copied, values are shared. `foresight.fork.discard` ends it."""
        twin = ClusterState()
        for name in (*PART_NAMES, *_COPIED):
            part = getattr(self, name)
            is_shared = not isinstance(part, dict | list | KeyRing | Dependents)
            setattr(twin, name, part if is_shared else part.copy())
        twin.accounts = self.accounts.copy(twin.tenants)
        twin.queue.discard()  # the empty queue
        twin.queue = self.queue.copy(twin.tasks, twin.accounts)
        twin.rooms = self.rooms.copy(twin.nodes, twin.gpus, twin.leases)
        twin.crews = self.crews.copy()
        return twin

    def rebuild(self) -> None:
        """Derives all indexes again from the flat dicts."""
        self._derive()
        self.rooms.rebuild()
        for shape_id, shape in self.shapes.items():
            self.queue.know(shape_id, shape)
        ready: dict[tuple[ShapeId, int], dict[TaskId, Task]] = {}  # added once per line, not per task
        for task_id, task in sorted(self.tasks.items()):
            self.queue.shapes[task.shape_id].uses += 1
            if task.status is TaskStatus.PENDING:
                if task.eligible_at or self.is_apart(task):
                    self.queue.add(task, apart=self.is_apart(task))
                else:
                    ready.setdefault((task.shape_id, time_class(task)), {})[task_id] = task
            elif task.status is TaskStatus.RUNNING:
                shape = self.shapes[task.shape_id]
                if shape.array_id:
                    self.queue.count_running(shape, 1)
                if self.leases[task.lease_id].started:
                    self.note_expiry(task)
            else:
                self.ended.append((task.ended_at, task_id))
        for (shape_id, _), tasks in ready.items():
            self.queue.extend(self.queue.shapes[shape_id], tasks)
        heapify(self.ended)
        self.crews.rebuild(self.tasks, self.shapes, self.leases)
        for lease in self.leases.values():
            if lease.worker:
                continue
            self.hold(self.queue.shapes[self.tasks[lease.task_id].shape_id], lease)
            if lease.stop_for:
                self.reclaims[lease.id] = lease.stop_for
        for task_id, awaited in self.after.items():
            self.dependents.link(task_id, awaited)
        for reservation in self.reservations.values():
            self.reserve(reservation)

    def _derive(self) -> None:
        self.accounts = Accounts(self.tenants, self.meter)
        self.accounts.learn(self.usages, self.meter)
        self.queue = Queue(self.tasks, self.accounts, self.settings.ageing_ms)
        self.away: dict[NodeId, dict[Pool, int]] = {}  # use of GPUs that are unreachable or faulty
        self.reclaims: dict[LeaseId, TaskId] = {}  # stops that return quota, with the task that waits for it
        self.stirred = True  # use, quota or tenants changed since lines were last woken for that
        self.dependents = Dependents()
        self.rooms: Rooms = Rooms(self.nodes, self.gpus, self.leases, self.settings, self.typical)
        self.ended: list[tuple[int, TaskId]] = []  # heap: (ended_at, id) of ended tasks
        self.expiring: list[tuple[int, TaskId, LeaseId]] = []  # heap: ends of allocations, with stale entries
        self.fits_empty: dict[Demand, bool] = {}  # whether an empty node could hold the demand
        self.health_at: int | None = NOT_COMPUTED  # when time takes the next step of a GPU's health
        self.bookings = Bookings()
        self.crews = Crews()

    def become(self, other: ClusterState) -> None:
        """Takes over all of `other`, which the caller must not use afterwards. Readers that hold this object continue
        with it.
        """
        for name in (*PART_NAMES, *_COPIED, *_LINKED):
            setattr(self, name, getattr(other, name))

    # use of pools and tenants

    def hold(self, known: KnownShape, lease: Lease) -> None:
        """`known`: the shape of the lease's task."""
        milli = lease.gpu_milli
        known.pool.used_milli += milli
        self.accounts.hold(known.account, lease, milli)
        self.bookings.ends.note((lease.id,))

    def note_freed(self, account: Account) -> None:
        """The tenant uses or reserves less: its own tasks may start, and those that wait for quota."""
        self.accounts.note_freed(account)
        self.stirred = True

    # reservations

    def reserve(self, reservation: Reservation) -> None:
        """Adds a reservation for a task that had none."""
        self.reservations[reservation.task_id] = reservation
        self.queue.note_reserved(self.tasks[reservation.task_id], 1)
        self.keep(reservation)

    def keep(self, reservation: Reservation) -> None:
        shape = self.shapes[self.tasks[reservation.task_id].shape_id]
        for place in reservation.places:
            hold = Hold(place.gpu_ids, shape.cpus_milli, shape.ram_mb)
            self.rooms.keep(place.node_id, reservation.task_id, hold)

    def let_go(self, task_id: TaskId) -> None:
        """The task no longer holds a reservation."""
        reservation = self.reservations.pop(task_id, None)
        if reservation is not None:
            for place in reservation.places:
                self.rooms.keep(place.node_id, task_id, None)
            self.queue.note_reserved(self.tasks[task_id], -1)
            self.note_freed(self.queue.shapes[self.tasks[task_id].shape_id].account)
            self.bookings.forget(task_id)

    def hasten(self, lease_ids: Sequence[LeaseId]) -> None:
        """Leases were ordered to end: their nodes come free sooner than expected."""
        self.bookings.ends.note(lease_ids)
        for lease_id in lease_ids:
            self.rooms.touch(self.leases[lease_id].node_id)

    # queries

    def node_gpus(self, node_id: NodeId) -> tuple[Gpu, ...]:
        """Sorted by index, including GPUs that are gone but still leased."""
        room = self.rooms.by_node.get(node_id)
        return () if room is None else tuple(self.gpus[gpu_id] for gpu_id in room.gpu_ids)

    def node_leases(self, node_id: NodeId) -> tuple[Lease, ...]:
        room = self.rooms.by_node.get(node_id)
        return () if room is None else tuple(self.leases[lease_id] for lease_id in sorted(room.leases))

    def is_leaving(self, lease: Lease) -> bool:
        """Its task was ordered to end."""
        return bool(lease.stopping) or self.tasks[lease.task_id].cancelling

    def node_calls(self, node_id: NodeId) -> tuple[Lease, ...]:
        """The leases of the calls that have slots of workers on this node."""
        if not self.workers:
            return ()
        return tuple(
            self.leases[call]
            for lease in self.node_leases(node_id)
            if lease.task_id in self.workers
            for call in self.crews.calls_of(lease.id)
        )

    def gpu_leases(self, gpu_id: GpuId) -> tuple[Lease, ...]:
        """Several if tasks share the GPU, oldest first."""
        return tuple(self.leases[lease_id] for lease_id in sorted(self.rooms.holders.get(gpu_id, ())))

    def gpu_counts(self) -> dict[GpuStatus, int]:
        return dict(zip(STATUSES, self.rooms.counts, strict=True))

    @property
    def waiting_count(self) -> int:
        return self.queue.count

    @property
    def running_count(self) -> int:
        return len(self.leases) - sum([len(gang.leases) - 1 for gang in self.gangs.values()])

    @property
    def ended_count(self) -> int:
        return len(self.tasks) - self.queue.count - self.running_count

    def is_apart(self, task: Task) -> bool:
        """A waiting task that may not be placed, regardless of room."""
        return task.held or task.id in self.after

    def leases_of(self, task: Task) -> tuple[LeaseId, ...]:
        """The leases of a running task: one, or one for each rank of a gang."""
        gang = self.gangs.get(task.id)
        return (task.lease_id,) if gang is None else gang.leases

    # shapes

    def know(self, shape: Shape) -> KnownShape:
        known = self.queue.find(shape)
        if known is not None:
            return known
        shape_id = self.next_shape_id
        self.next_shape_id = ShapeId(shape_id + 1)
        self.shapes[shape_id] = shape
        return self.queue.know(shape_id, shape)

    def leave_shape(self, shape_id: ShapeId) -> None:
        """One task less has this shape. It is forgotten with its last task."""
        known = self.queue.shapes[shape_id]
        known.uses -= 1
        if not known.uses:
            self.queue.forget(shape_id)
            del self.shapes[shape_id]

    # time

    def note_expiry(self, task: Task) -> None:
        if task.allocation and task.timeout_ms:
            heappush(self.expiring, (task.started_at + task.timeout_ms, task.id, task.lease_id))
            if len(self.expiring) > 2 * len(self.leases) + 64:
                self.expiring = [entry for entry in self.expiring if entry[2] in self.leases]
                heapify(self.expiring)

    def expired(self, at: int) -> Iterator[Task]:
        """Allocations whose time is over, earliest first."""
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

    def wall_ms(self, at: int) -> int:
        """The wall clock at a recent `at`."""
        span = newest_span(self.wall)
        return at if span is None else at + span.wall_offset_ms

    def month_at(self, at: int) -> int:
        """The calendar month by the wall clock."""
        return month_of(self.wall_ms(at))

    # the health of GPUs

    def health_due_at(self, known: GpuHealth) -> int | None:
        """When time takes the next step of a GPU's health; None: not while it is unreachable, or a task is ending on
        it.
        """
        gpu = self.gpus.get(known.gpu_id)
        if gpu is None or gpu.gone or self.nodes[gpu.node_id].offline_since:
            return None
        if not known.serves and any(
            gpu.id in lease.gpu_ids and not lease.ended for lease in self.node_leases(gpu.node_id)
        ):
            return None
        return due_at(known, self.settings.health)

    def next_health_at(self) -> int | None:
        if self.health_at == NOT_COMPUTED:
            due = map(self.health_due_at, self.health.values())
            self.health_at = min((at for at in due if at is not None), default=None)
        return self.health_at


def gpu_status(state: ClusterState, gpu: Gpu) -> GpuStatus:
    return status_of(gpu, state.nodes[gpu.node_id], leased=gpu.id in state.rooms.holders)


def next_wake_at(state: ClusterState) -> int | None:
    """When the next back-off ends, or calls may stop waiting for a warm worker: the service runs a pass then."""
    return _earliest(state.queue.next_eligible_at, state.crews.next_again_at)


def next_tick_at(state: ClusterState) -> int | None:
    """When the next allocation ends, a GPU's next health step is due, or a worker was idle for too long: the service
    sends a Tick then.
    """
    due = _earliest(state.next_expiry_at(), state.next_health_at())
    return _earliest(due, next_idle_at(state.workers.values(), state.settings)) if state.workers else due


def _earliest(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)
