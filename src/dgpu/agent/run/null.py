"""Runs nothing: a task ends at once. For simulated nodes and benchmarks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dgpu.agent.keeper_settings import boot_ms
from dgpu.agent.run.runner import RunEnd, RunnerWord, RunOrder, RunsEnded, RunsListed, RunsStarted, StopOrder
from dgpu.core.model.ids import LeaseId, NodeId
from dgpu.core.model.task import Outcome


class NullRunner:
    def __init__(
        self, *, node_ids: Sequence[NodeId], say: Callable[[NodeId, Sequence[RunnerWord]], None]
    ) -> None:
        self._node_ids = tuple(node_ids)
        self._say = say

    async def open(self) -> None:
        for node_id in self._node_ids:
            self._say(node_id, [RunsListed(runs=())])

    def start(self, node_id: NodeId, orders: Sequence[RunOrder]) -> None:
        now_ms = boot_ms()
        started = RunsStarted(started=tuple((order.lease_id, now_ms) for order in orders))
        ended = RunsEnded(
            ended=tuple(
                RunEnd(lease_id=order.lease_id, outcome=Outcome.EXITED, at_ms=now_ms) for order in orders
            )
        )
        self._say(node_id, [started, ended])

    def stop(self, orders: Sequence[StopOrder]) -> None:
        pass

    def thaw(self, lease_ids: Sequence[LeaseId]) -> None:
        pass

    def forget(self, lease_ids: Sequence[LeaseId]) -> None:
        pass

    def heard(self, node_id: NodeId, *, at_ms: int, lease_ms: int, action: str) -> None:
        pass

    def owners(self) -> dict[int, LeaseId | None]:
        return {}

    def ports_of(self, node_id: NodeId, lease_id: LeaseId) -> None:
        pass

    def worker_address(self, lease_id: LeaseId) -> None:
        pass

    async def close(self, *, stop_tasks: bool) -> None:
        pass
