"""Runs nothing: a task ends by itself after a given time. For simulated nodes and benchmarks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from dgpu.agent.keeper_settings import boot_ms
from dgpu.agent.run.runner import RunEnd, RunnerWord, RunOrder, RunsEnded, RunsListed, RunsStarted, StopOrder
from dgpu.core.model.ids import LeaseId, NodeId
from dgpu.core.model.task import Outcome


class NullRunner:
    def __init__(
        self,
        *,
        node_ids: Sequence[NodeId],
        say: Callable[[NodeId, Sequence[RunnerWord]], None],
        run_ms: int = 0,
    ) -> None:
        self._node_ids = tuple(node_ids)
        self._say = say
        self._run_ms = run_ms
        self._running: dict[LeaseId, NodeId] = {}

    async def open(self) -> None:
        for node_id in self._node_ids:
            self._say(node_id, [RunsListed(runs=())])

    def start(self, node_id: NodeId, orders: Sequence[RunOrder]) -> None:
        lease_ids = tuple(order.lease_id for order in orders)
        self._running.update(dict.fromkeys(lease_ids, node_id))
        now_ms = boot_ms()
        started = RunsStarted(started=tuple((lease_id, now_ms) for lease_id in lease_ids))
        if self._run_ms == 0:
            self._finish(node_id, lease_ids, started)
            return
        self._say(node_id, [started])
        asyncio.get_running_loop().call_later(self._run_ms / 1_000, self._finish, node_id, lease_ids, None)

    def stop(self, orders: Sequence[StopOrder]) -> None:
        for order in orders:
            node_id = self._running.pop(order.lease_id, None)
            if node_id is not None:
                end = RunEnd(lease_id=order.lease_id, outcome=order.cause, at_ms=boot_ms())
                self._say(node_id, [RunsEnded(ended=(end,))])

    def thaw(self, lease_ids: Sequence[LeaseId]) -> None:
        pass

    def forget(self, lease_ids: Sequence[LeaseId]) -> None:
        pass

    def heard(self, node_id: NodeId, *, at_ms: int, lease_ms: int, action: str) -> None:
        pass

    def owners(self) -> dict[int, LeaseId | None]:
        return {}

    async def close(self, *, stop_tasks: bool) -> None:
        pass

    def _finish(self, node_id: NodeId, lease_ids: tuple[LeaseId, ...], started: RunsStarted | None) -> None:
        now_ms = boot_ms()
        ended = tuple(
            RunEnd(lease_id=lease_id, outcome=Outcome.EXITED, at_ms=now_ms)
            for lease_id in lease_ids
            if self._running.pop(lease_id, None) is not None
        )
        words: list[RunnerWord] = [started] if started is not None else []
        if ended:
            words.append(RunsEnded(ended=ended))
        self._say(node_id, words)
