"""Nodes and GPUs in columns, in the form of the dashboard, and the changes since the last check.

A check compares by identity first: values of the core and samples are frozen, so the same object has the same value. Of
1,600 GPUs usually a few hundred have a new sample; only their rows are computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from dgpu.core.index.cards import status_of, usable_mb
from dgpu.core.index.room import STATUSES
from dgpu.core.model.health import Health
from dgpu.core.model.ids import GpuId, LeaseId, NodeId
from dgpu.core.model.node import Gpu, Node, NodeStatus
from dgpu.core.model.task import WHOLE_MILLI
from dgpu.core.state import ClusterState
from dgpu.service.access.anonymous import tenant_of, without_tasks
from dgpu.service.access.principal import Tenants
from dgpu.service.machine.agent_words import GpuSample
from dgpu.wire.board_answers import Changed, GpuColumns, NodeColumns

MAX_TASKS_SHOWN = 8  # of one GPU; the count includes the rest
NODE_STATUSES = tuple(NodeStatus)
HEALTHS = tuple(Health)
_STATUS_CODES = {status: code for code, status in enumerate(STATUSES)}
_NODE_CODES = {status: code for code, status in enumerate(NODE_STATUSES)}
_HEALTH_CODES = {health: code for code, health in enumerate(HEALTHS)}

FIXED = ("id", "node", "index", "model", "mem_total")  # a new value of these means a new layout
CHANGING = (
    "status",
    "health",
    "util",
    "mem_used",
    "mem_foreign",
    "mem_reserved",
    "temp",
    "power",
    "tasks",
    "task_count",
    "fault",
    "warm",
)
MEASURED = ("util", "mem_used", "temp", "power", "mem_foreign")  # all columns that a new sample can change
NODE_CHANGING = ("status", "reason", "since_ms", "labels")

Changes = dict[str, Changed]  # by column
_Named = tuple[tuple[str, list[Any]], ...]  # columns by name, in the order of the rows
_Holders = tuple[tuple[int, str | None], ...]  # the tasks of one GPU, each with its tenant


class Columns:
    def __init__(self) -> None:
        self.models: list[str] = []
        self.nodes = NodeColumns()
        self.gpus = GpuColumns()
        self._holders: list[_Holders] = []  # of each GPU; never sent
        self._moved: list[int] = []  # places whose holders changed in the last check
        self._gpu_ids: list[GpuId] = []  # in the order of the columns
        self._node_ids: list[NodeId] = []
        self._changing: _Named = ()
        self._measured: _Named = ()
        self._node_changing: _Named = ()
        self._cards: dict[NodeId, tuple[GpuId, ...]] = {}  # GPUs of each node, in the order of its room
        self._seen_nodes: list[Node | None] = []
        self._seen_gpus: list[Gpu | None] = []
        self._seen_samples: list[GpuSample | None] = []
        self._seen_leases: list[tuple[LeaseId, ...] | None] = []

    def look(
        self, state: ClusterState, telemetry: Mapping[GpuId, GpuSample]
    ) -> tuple[Changes, Changes] | None:
        """The changes of GPUs and of nodes; None: the set of nodes or GPUs changed, so all columns are new."""
        if self._is_other_cluster(state) and self._lay_out(state):
            self._fill(state, telemetry)
            return None
        return self._fill(state, telemetry)

    # Readers of some tenants: own tasks with their numbers, and of others only that a GPU is busy

    def nodes_for(self, tenants: Tenants) -> NodeColumns:
        if tenants is None:
            return self.nodes
        return replace(self.nodes, reason=[without_tasks(reason) for reason in self.nodes.reason])

    def gpus_for(self, tenants: Tenants) -> GpuColumns:
        if tenants is None:
            return self.gpus
        return replace(
            self.gpus,
            tasks=[_own_tasks(holders, tenants) for holders in self._holders],
            fault=[without_tasks(fault) for fault in self.gpus.fault],
            warm=[[] for _ in self.gpus.warm],
        )

    def changes_for(self, tenants: Tenants, gpus: Changes, nodes: Changes) -> tuple[Changes, Changes]:
        """Of the last check."""
        if tenants is None:
            return gpus, nodes
        told = {name: change for name, change in gpus.items() if name not in {"tasks", "warm"}}
        if self._moved:
            tasks = [_own_tasks(self._holders[place], tenants) for place in self._moved]
            told["tasks"] = Changed(i=self._moved, v=tasks)
        return _plain(told, "fault"), _plain(nodes, "reason")

    # Nodes and GPUs that exist

    def _is_other_cluster(self, state: ClusterState) -> bool:
        cards, rooms = self._cards, state.rooms.by_node
        if len(cards) != len(state.nodes):
            return True
        for node_id in state.nodes:
            room = rooms.get(node_id)
            if room is None or cards.get(node_id) is not room.gpu_ids:
                return True
        return False

    def _lay_out(self, state: ClusterState) -> bool:
        """Whether a fixed value differs: a node that registers again usually has the same GPUs as before."""
        fresh = GpuColumns()
        gpu_ids: list[GpuId] = []
        first: list[int] = []
        models: dict[str, int] = {}
        cards: dict[NodeId, tuple[GpuId, ...]] = {}
        names = sorted(state.nodes)
        for number, node_id in enumerate(names):
            room = state.rooms.by_node.get(node_id)
            cards[node_id] = room.gpu_ids if room is not None else ()
            first.append(len(gpu_ids))
            gpu_ids += cards[node_id]
            for gpu_id in cards[node_id]:
                gpu = state.gpus[gpu_id]
                fresh.id.append(gpu.id)
                fresh.node.append(number)
                fresh.index.append(gpu.index)
                fresh.model.append(models.setdefault(gpu.model, len(models)))
                fresh.mem_total.append(gpu.memory_mb)
        self._cards = cards
        nodes = NodeColumns(id=[*names], first=first, gpus=[len(cards[node_id]) for node_id in names])
        is_same = self.nodes.id == nodes.id and self.nodes.gpus == nodes.gpus and self.models == list(models)
        if is_same and all(getattr(self.gpus, name) == getattr(fresh, name) for name in FIXED):
            return False
        self.models = list(models)
        self.nodes, self.gpus = nodes, fresh
        self._node_ids, self._gpu_ids = names, gpu_ids
        self._begin_rows()
        return True

    def _begin_rows(self) -> None:
        """All rows are still unknown."""
        size, number = len(self.gpus.id), len(self.nodes.id)
        self._changing = tuple((name, getattr(self.gpus, name)) for name in CHANGING)
        self._measured = tuple((name, getattr(self.gpus, name)) for name in MEASURED)
        self._node_changing = tuple((name, getattr(self.nodes, name)) for name in NODE_CHANGING)
        for _, column in self._changing:
            column.extend([None] * size)
        for _, column in self._node_changing:
            column.extend([None] * number)
        self._seen_nodes = [None] * number
        self._seen_gpus, self._seen_samples, self._seen_leases = [None] * size, [None] * size, [None] * size
        self._holders = [()] * size

    # Values of the rows

    def _fill(self, state: ClusterState, telemetry: Mapping[GpuId, GpuSample]) -> tuple[Changes, Changes]:
        node_changes = self._fill_nodes(state)
        changes: Changes = {}
        self._moved = []
        gpus, sample_of, leases_of = state.gpus, telemetry.get, state.rooms.holders.get
        seen = zip(self._gpu_ids, self._seen_gpus, self._seen_samples, self._seen_leases, strict=True)
        others = [
            place
            for place, (gpu_id, gpu, sample, leases) in enumerate(seen)
            if gpus[gpu_id] is not gpu or sample_of(gpu_id) is not sample or leases_of(gpu_id) is not leases
        ]
        for place in others:
            gpu_id = self._gpu_ids[place]
            gpu, sample, leases = gpus[gpu_id], sample_of(gpu_id), leases_of(gpu_id)
            node = state.nodes[gpu.node_id]
            self._seen_samples[place] = sample
            if (
                gpu is self._seen_gpus[place] and leases is self._seen_leases[place]
            ):  # by far the most frequent case
                _note(self._measured, changes, place, _measured(node, gpu, sample))
            else:
                self._seen_gpus[place], self._seen_leases[place] = gpu, leases
                self._note_holders(state, place, leases or ())
                _note(self._changing, changes, place, _gpu_row(state, node, gpu, sample, leases or ()))
        return changes, node_changes

    def _note_holders(self, state: ClusterState, place: int, lease_ids: tuple[LeaseId, ...]) -> None:
        task_ids = [state.leases[lease_id].task_id for lease_id in sorted(lease_ids)]
        holders = tuple((task_id, tenant_of(state, task_id)) for task_id in task_ids)
        if holders != self._holders[place]:
            self._holders[place] = holders
            self._moved.append(place)

    def _fill_nodes(self, state: ClusterState) -> Changes:
        changes: Changes = {}
        for number, node_id in enumerate(self._node_ids):
            node = state.nodes[node_id]
            if node is not self._seen_nodes[number]:
                self._seen_nodes[number] = node
                _note(self._node_changing, changes, number, _node_row(node))
                first, count = self.nodes.first[number], self.nodes.gpus[number]
                self._seen_gpus[first : first + count] = [
                    None
                ] * count  # their status follows from the status of the node
        return changes


def _own_tasks(holders: _Holders, tenants: tuple[str, ...]) -> list[int]:
    return [task_id for task_id, tenant_id in holders if tenant_id in tenants][:MAX_TASKS_SHOWN]


def _plain(changes: Changes, column: str) -> Changes:
    """With the texts of this column naming no task."""
    change = changes.get(column)
    if change is None:
        return changes
    return {**changes, column: replace(change, v=[without_tasks(text) for text in change.v])}


def _node_row(node: Node) -> tuple[Any, ...]:
    return (
        _NODE_CODES[node.status],
        node.drain_reason,
        node.offline_since or node.unconfirmed_since,
        node.labels,
    )


def _gpu_row(
    state: ClusterState, node: Node, gpu: Gpu, sample: GpuSample | None, lease_ids: tuple[LeaseId, ...]
) -> tuple[Any, ...]:
    """In the order of CHANGING."""
    status = status_of(gpu, node, leased=bool(lease_ids))
    util, used_mb, temperature_c, power_w, foreign_mb = _measured(node, gpu, sample)
    leases = [state.leases[lease_id] for lease_id in sorted(lease_ids)]
    if all(lease.share_milli < WHOLE_MILLI for lease in leases):
        reserved_mb = sum(lease.gpu_memory_mb for lease in leases)
    else:
        reserved_mb = usable_mb(gpu, state.settings)
    return (
        _STATUS_CODES[status],
        _HEALTH_CODES[gpu.health],
        util,
        used_mb,
        foreign_mb,
        reserved_mb,
        temperature_c,
        power_w,
        [lease.task_id for lease in leases[:MAX_TASKS_SHOWN]],
        len(leases),
        gpu.fault,
        list(gpu.warm),
    )


def _measured(node: Node, gpu: Gpu, sample: GpuSample | None) -> tuple[Any, ...]:
    """In the order of MEASURED. A measurement from before the loss of a GPU says nothing about the present."""
    if sample is None or node.offline_since or gpu.gone:
        return (None, None, None, None, gpu.foreign_mb)
    return (
        sample.utilization_percent,
        sample.memory_used_mb,
        sample.temperature_c,
        sample.power_w,
        gpu.foreign_mb if sample.memory_foreign_mb is None else sample.memory_foreign_mb,
    )


def _note(columns: _Named, changes: Changes, place: int, row: tuple[Any, ...]) -> None:
    for (name, column), value in zip(columns, row, strict=True):
        if column[place] != value:
            column[place] = value
            change = changes.get(name)
            if change is None:
                change = changes[name] = Changed()
            change.i.append(place)
            change.v.append(value)
