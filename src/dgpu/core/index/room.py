"""The free resources of a node. Derived from the state, changed in place, never journaled."""

from __future__ import annotations

from typing import Final, NamedTuple

from dgpu.core.model.ids import GpuId, LeaseId, NodeId, TaskId
from dgpu.core.model.node import GpuStatus, Kind
from dgpu.core.model.reservation import Hold
from dgpu.core.model.task import WHOLE_MILLI

STATUSES: Final = tuple(GpuStatus)
IDLE: Final = STATUSES.index(GpuStatus.IDLE)  # the position of idle GPUs in `Room.counts`
BUSY: Final = STATUSES.index(GpuStatus.BUSY)


class Card(NamedTuple):
    """A GPU that tasks may get, sorted by `key`, then by place and id."""

    key: int  # the smaller, the better while idle; see rules.score
    place: int  # its index in the node
    id: GpuId
    model: str
    usable_mb: int  # memory that may be promised: without the safety margin and foreign memory
    parole: bool = False  # for tasks of low priority only
    over_mb: int = 0  # used by shared tasks beyond what they reserved
    warm: tuple[str, ...] = ()  # loaded models
    max_warm: int = 0
    kind: Kind = Kind("", 0)


class Used(NamedTuple):
    """The part of a GPU that shared tasks hold."""

    milli: int
    memory_mb: int
    leases: int


_NOTHING: Final = Used(0, 0, 0)


class Room:
    __slots__ = (
        "cards",
        "counts",
        "cpus_free_milli",
        "flat",
        "gpu_ids",
        "holds",
        "idle",
        "keeps",
        "kept",
        "kept_cpus_milli",
        "kept_ram_mb",
        "labels",
        "leases",
        "max_leases",
        "mixed",
        "near",
        "node_id",
        "parts",
        "ram_free_mb",
        "ready",
        "used",
        "version",
        "warm",
    )

    def __init__(self, node_id: NodeId, *, bare: bool = False) -> None:
        """`bare`: the caller sets all other fields, as forks of large clusters do."""
        self.node_id = node_id
        self.version = 0  # grows with every change
        if bare:
            return
        self.ready = False  # the node takes tasks
        self.cpus_free_milli = 0
        self.ram_free_mb = 0
        self.labels: dict[str, str] = {}
        self.idle: list[Card] = []  # sorted; empty unless ready
        self.used: dict[GpuId, Used] = {}  # GPUs with shared tasks; empty unless ready
        self.parts: dict[
            GpuId, int
        ] = {}  # the free thousandths of these GPUs, if any and not kept for a reservation
        self.cards: dict[GpuId, Card] = {}  # all GPUs that are not reserved, faulty or gone, leased or not
        self.gpu_ids: tuple[GpuId, ...] = ()  # all of the node, by index
        self.leases: dict[LeaseId, None] = {}
        self.max_leases = 0
        self.counts: list[int] = [0] * len(STATUSES)  # GPUs per status
        self.mixed = False  # its GPUs differ in model, memory or trust
        self.warm = False  # models are loaded on some GPU
        self.flat = True  # all pairs of GPUs are equally near
        self.near: dict[GpuId, dict[GpuId, int]] = {}
        self.holds: dict[TaskId, Hold] = {}  # of reservations; replaced, never changed
        self.keeps: dict[GpuId, tuple[TaskId, ...]] = {}  # GPUs of reservations, with their tasks
        self.kept: list[Card] = []  # idle GPUs kept for reservations: not in `idle`
        self.kept_cpus_milli = 0
        self.kept_ram_mb = 0

    def copy(self) -> Room:
        twin = Room(self.node_id, bare=True)
        twin.ready, twin.gpu_ids, twin.version = self.ready, self.gpu_ids, self.version
        twin.max_leases = self.max_leases
        twin.cpus_free_milli, twin.ram_free_mb = self.cpus_free_milli, self.ram_free_mb
        # These are replaced, never changed.
        twin.labels, twin.cards, twin.near = self.labels, self.cards, self.near
        twin.mixed, twin.warm, twin.flat = self.mixed, self.warm, self.flat
        twin.idle = self.idle.copy()
        twin.used, twin.parts = self.used.copy(), self.parts.copy()
        twin.leases = self.leases.copy()
        twin.counts = self.counts.copy()
        twin.holds, twin.keeps, twin.kept = self.holds, self.keeps, self.kept.copy()
        twin.kept_cpus_milli, twin.kept_ram_mb = self.kept_cpus_milli, self.kept_ram_mb
        return twin

    @property
    def is_full(self) -> bool:
        """The node may get no more tasks, whatever their demand."""
        return len(self.leases) >= self.max_leases

    def keep(self, holds: dict[TaskId, Hold]) -> None:
        """Sets all holds of reservations on this node."""
        self.holds = holds
        keeps: dict[GpuId, tuple[TaskId, ...]] = {}
        for task_id, hold in holds.items():
            for gpu_id in hold.gpu_ids:
                keeps[gpu_id] = (*keeps.get(gpu_id, ()), task_id)
        self.hide(
            keeps,
            sum(hold.cpus_milli for hold in holds.values()),
            sum(hold.ram_mb for hold in holds.values()),
        )

    def hide(self, keeps: dict[GpuId, tuple[TaskId, ...]], cpus_milli: int, ram_mb: int) -> None:
        self.keeps = keeps
        self.kept_cpus_milli, self.kept_ram_mb = cpus_milli, ram_mb
        cards = sorted(self.idle + self.kept)
        self.idle = [card for card in cards if card.id not in keeps]
        self.kept = [card for card in cards if card.id in keeps]
        for gpu_id in self.used:
            self.look_at_part(gpu_id)

    def host_left(self) -> tuple[int, int]:
        """The free cpus and ram that no reservation keeps."""
        if not self.holds:
            return self.cpus_free_milli, self.ram_free_mb
        return (
            max(0, self.cpus_free_milli - self.kept_cpus_milli),
            max(0, self.ram_free_mb - self.kept_ram_mb),
        )

    def use(self, gpu_id: GpuId, milli: int, memory_mb: int) -> None:
        """A shared task takes this much of a GPU; negative: it releases it."""
        used = self.used.get(gpu_id, _NOTHING)
        leases = used.leases + (1 if milli > 0 else -1)
        if leases:
            self.used[gpu_id] = Used(used.milli + milli, used.memory_mb + memory_mb, leases)
        else:
            del self.used[gpu_id]
        self.look_at_part(gpu_id)

    def look_at_part(self, gpu_id: GpuId) -> None:
        """The free part of a GPU is computed when the GPU changes, not at each query."""
        card = self.cards.get(gpu_id) if gpu_id in self.used and gpu_id not in self.keeps else None
        left = 0 if card is None else self.free_milli(card)
        if left:
            self.parts[gpu_id] = left
        else:
            self.parts.pop(gpu_id, None)

    def free_milli(self, card: Card) -> int:
        """The free part of a GPU with shared tasks."""
        used = self.used[card.id]
        return free_beside(card, used.milli, used.memory_mb)

    def facts(self) -> tuple[object, ...]:
        """For comparison with a room rebuilt from scratch."""
        return (
            self.node_id,
            self.ready,
            self.cpus_free_milli,
            self.ram_free_mb,
            self.labels,
            self.idle,
            dict(sorted(self.used.items())),
            dict(sorted(self.parts.items())),
            self.cards,
            self.gpu_ids,
            sorted(self.leases),
            self.counts,
            self.kept,
            dict(sorted(self.holds.items())),
        )


def whole(room: Room) -> Room:
    """A copy without any reservation, to check what fits. Read-only."""
    twin = room.copy()
    twin.hide({}, 0, 0)
    return twin


def free_beside(card: Card, milli: int, memory_mb: int) -> int:
    """The thousandths of a GPU left beside such shares: by share and by memory, the smaller."""
    free = WHOLE_MILLI - milli
    usable_mb = card.usable_mb
    if usable_mb:
        by_memory = (usable_mb - memory_mb - card.over_mb) * WHOLE_MILLI // usable_mb
        if by_memory < free:  # noqa: PLR1730 - for every shared card of a room, in every decision
            free = by_memory
    return free if free > 0 else 0  # noqa: FURB136
