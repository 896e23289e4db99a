"""The scheduler's board, updated by its stream of columns and changes, as rows for the screen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dgpu.wire.answers import instant_or_none
from dgpu.wire.cluster_answers import (
    GpuAnswer,
    GpuHealthAnswer,
    GpuList,
    NodeAnswer,
    PoolQuota,
    QuotaAnswer,
)

_TRUSTED = GpuHealthAnswer()


class Board:
    """Builds only changed rows again: of 16,000 GPUs, one event changes a few hundred."""

    def __init__(self, snapshot: Mapping[str, Any], nodes: Sequence[NodeAnswer] = ()) -> None:
        self._all = dict(snapshot)
        self.seq = int(snapshot["seq"])
        self.isolation = str(snapshot.get("isolation", ""))
        # The board lacks cpus, ram and address, which do not change while a node stays.
        self._known = {node.id: node for node in nodes}
        self._gpus: dict[str, list[Any]] = self._all["gpus"]
        self._nodes: dict[str, list[Any]] = self._all["nodes"]
        self.gpus = [self._gpu(place) for place in range(len(self._gpus["id"]))]
        self.nodes = [self._node(place) for place in range(len(self._nodes["id"]))]

    def apply(self, delta: Mapping[str, Any]) -> bool:
        """False: an event is missing, and a new snapshot is needed."""
        if delta["seq"] != self.seq + 1:
            return False
        self.seq = delta["seq"]
        gpus = _change(self._gpus, delta.get("gpus", {}))
        nodes = _change(self._nodes, delta.get("nodes", {}))
        for place in gpus:
            self.gpus[place] = self._gpu(place)
        for place in nodes | {self._gpus["node"][place] for place in gpus}:
            self.nodes[place] = self._node(place)
        self._all["counts"].update(delta.get("counts", {}))
        for part in ("pools", "quota"):
            if part in delta:
                self._all[part] = delta[part]
        return True

    @property
    def running(self) -> int:
        return int(self._all["counts"]["running"])

    @property
    def waiting(self) -> int:
        return int(self._all["counts"]["waiting"])

    def gpu_list(self) -> GpuList:
        counts = self._all["counts"]
        states = {state: int(counts.get(state, 0)) for state in self._all["statuses"]}
        return GpuList(total=len(self.gpus), gpus=list(self.gpus), **states)

    def quota(self) -> QuotaAnswer:
        pools = {name: msgspec.convert(pool, PoolQuota) for name, pool in self._all["pools"].items()}
        return msgspec.convert({**self._all["quota"], **pools}, QuotaAnswer)

    def _gpu(self, place: int) -> GpuAnswer:
        row = {name: column[place] for name, column in self._gpus.items()}
        health = self._all["healths"][row["health"]]
        return GpuAnswer(
            id=row["id"],
            node=self._nodes["id"][row["node"]],
            index=row["index"],
            uuid=row["id"],
            model=self._all["models"][row["model"]],
            memory_total_mb=row["mem_total"],
            memory_used_mb=row["mem_used"],
            memory_foreign_mb=row["mem_foreign"],
            memory_reserved_mb=row["mem_reserved"],
            utilization_percent=row["util"],
            temperature_c=row["temp"],
            power_w=row["power"],
            status=self._all["statuses"][row["status"]],
            fault=row["fault"],
            health=_TRUSTED
            if health == "trusted"
            else GpuHealthAnswer(state=health, evidence=row["fault"], needs_person=health == "out"),
            tasks=[f"task-{number}" for number in row["tasks"]],
            loaded_models=row["warm"],
        )

    def _node(self, place: int) -> NodeAnswer:
        row = {name: column[place] for name, column in self._nodes.items()}
        cards = self.gpus[row["first"] : row["first"] + row["gpus"]]
        status = self._all["node_statuses"][row["status"]]
        known = self._known.get(row["id"])
        return NodeAnswer(
            id=row["id"],
            status=status,
            address=known.address if known else "",
            agent_version=known.agent_version if known else "",
            gpus=row["gpus"],
            gpus_free=sum(gpu.status == "idle" for gpu in cards),
            gpu_models=sorted({gpu.model for gpu in cards}),
            cpus=known.cpus if known else 0,
            ram_mb=known.ram_mb if known else 0,
            tasks=list(dict.fromkeys(task for gpu in cards for task in gpu.tasks)),
            labels=row["labels"],
            registered_at=known.registered_at if known else None,
            offline_since=instant_or_none(row["since_ms"]) if status == "offline" else None,
            unconfirmed_since=instant_or_none(row["since_ms"]) if status == "unconfirmed" else None,
            draining=status == "draining",
            drain_reason=row["reason"],
        )


def _change(columns: dict[str, list[Any]], changed: Mapping[str, Any]) -> set[int]:
    places: set[int] = set()
    for name, change in changed.items():
        if (column := columns.get(name)) is not None:
            for place, value in zip(change["i"], change["v"], strict=True):
                column[place] = value
            places.update(change["i"])
    return places
