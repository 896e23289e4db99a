"""A keeper in the simulation: processes are timers that run unless they are frozen.

A keeper can hang. Its processes continue, its orders wait in the socket, and its guard ends everything shortly after
the task lease, as `agent.guard` does.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence

from dgpu.agent.run.runner import (
    KnownRun,
    RunEnd,
    RunnerWord,
    RunOrder,
    RunsEnded,
    RunsFrozen,
    RunsListed,
    RunsStarted,
    StopOrder,
)
from dgpu.agent.start_watch import START_MS
from dgpu.core.model.ids import LeaseId, NodeId
from dgpu.core.model.task import Outcome
from dgpu.sim.checkers import Checkers
from dgpu.sim.workers import SimWorkers
from dgpu.sim.world import World


class _Process:
    def __init__(self, order: RunOrder, started_ms: int, started_at: int) -> None:
        detail = json.loads(order.detail)
        self.order = order
        self.started_ms = started_ms  # on the node's clock
        self.code = int(detail["code"])
        self.left_ms = int(detail["ms"])  # of a worker without meaning
        self.limit_ms = order.timeout_ms  # rest of its time limit; 0: none
        self.runs_since = started_at
        self.frozen = False
        self.turn = 0  # a planned end of an earlier turn is ignored


class SimKeeper:
    def __init__(
        self,
        world: World,
        checkers: Checkers,
        node_id: NodeId,
        clock: Callable[[], int],
        to_world: Callable[[int], int],
    ) -> None:
        self._world = world
        self._checkers = checkers
        self._node_id = node_id
        self._clock = clock
        self._to_world = to_world
        self._processes: dict[LeaseId, _Process] = {}
        self._ends: dict[LeaseId, tuple[RunOrder, RunEnd]] = {}
        self._over_ms = 0
        self._action = "never"
        self._hung: list[Callable[[], None]] | None = None  # calls that wait while it hangs
        self._hangs = 0
        self.tell: Callable[[RunnerWord], None] | None = None  # None: no agent is connected
        self.on_ended_by_guard: Callable[[], None] = lambda: None
        self.workers = SimWorkers(world, checkers, node_id)
        self.workers.leave = self._worker_exits
        self.write_output: Callable[[RunOrder], int] = lambda _order: 0

    def listed(self) -> RunsListed:
        runs = [
            KnownRun(
                lease_id=lease_id,
                task_id=process.order.task_id,
                attempt=process.order.attempt,
                gpu_ids=process.order.gpu_ids,
                nonce=process.order.nonce,
                cluster_id=process.order.cluster_id,
                started_at_ms=process.started_ms,
                frozen=process.frozen,
                worker_silence_ms=_silence_ms(process.order),
            )
            for lease_id, process in self._processes.items()
        ]
        runs += [
            KnownRun(
                lease_id=lease_id,
                task_id=order.task_id,
                attempt=order.attempt,
                gpu_ids=order.gpu_ids,
                nonce=order.nonce,
                cluster_id=order.cluster_id,
                started_at_ms=1,
                end=end,
                worker_silence_ms=_silence_ms(order),
            )
            for lease_id, (order, end) in self._ends.items()
        ]
        return RunsListed(runs=tuple(runs))

    @property
    def hangs(self) -> bool:
        return self._hung is not None

    def hang(self, ms: int) -> None:
        if self._hung is not None:
            return
        self._hung = []
        self._hangs += 1
        hang = self._hangs

        def wake() -> None:
            if self._hung is not None and self._hangs == hang:
                waiting, self._hung = self._hung, None
                for action in waiting:
                    action()

        self._world.after(ms, wake)
        self._watch_lease(hang)

    def _watch_lease(self, hang: int) -> None:
        """The guard uses the keeper's last known lease, not messages in its socket."""
        if self._action == "never" or not self._over_ms:
            return

        def look() -> None:
            is_same = self._hung is not None and self._hangs == hang
            if is_same and not all(process.frozen for process in self._processes.values()):
                self.on_ended_by_guard()

        self._world.at(self._to_world(self._over_ms) + self._world.between(1_500, 3_500), look)

    def when_awake(self, action: Callable[[], None]) -> None:
        """Now, or after the hang."""
        if self._hung is None:
            action()
        else:
            self._hung.append(action)

    def start(self, orders: Sequence[RunOrder]) -> None:
        start_by_ms = self._clock() + START_MS
        self.when_awake(lambda: self._start(orders, start_by_ms))

    def _start(self, orders: Sequence[RunOrder], start_by_ms: int) -> None:
        for order in orders:
            if order.lease_id in self._processes or order.lease_id in self._ends:
                continue
            if self._clock() >= start_by_ms:
                self._end(order, Outcome.STOPPED, error="its start deadline passed before the start")
                continue
            if self._is_lease_over():
                self._end(order, Outcome.NODE_FAULT, error="the task lease ended before the start")
                continue
            process = _Process(order, self._clock(), self._world.now)
            self._processes[order.lease_id] = process
            self._checkers.on_awake(order, self._node_id)
            self.workers.start(order)
            self._plan_end(process)
            self._say(RunsStarted(started=((order.lease_id, process.started_ms),)))

    def stop(self, orders: Sequence[StopOrder]) -> None:
        self.when_awake(lambda: self._stop(orders))

    def _stop(self, orders: Sequence[StopOrder]) -> None:
        for order in orders:
            process = self._processes.get(order.lease_id)
            if process is not None:
                delay_ms = self._world.between(0, min(order.grace_ms, 1_000))
                finish = functools.partial(self._finish, process, order.cause)
                self._world.after(delay_ms, lambda f=finish: self.when_awake(f))  # type: ignore[misc]

    def thaw(self, lease_ids: Sequence[LeaseId]) -> None:
        self.when_awake(lambda: self._thaw(lease_ids))

    def _thaw(self, lease_ids: Sequence[LeaseId]) -> None:
        for lease_id in lease_ids:
            process = self._processes.get(lease_id)
            if process is not None and process.frozen and self._is_lease_over():
                self._say(RunsFrozen(lease_ids=(lease_id,)))
            elif process is not None and process.frozen:
                process.frozen = False
                process.runs_since = self._world.now
                self._checkers.on_awake(process.order, self._node_id)
                self.workers.thaw(lease_id)
                self._plan_end(process)

    def forget(self, lease_ids: Sequence[LeaseId]) -> None:
        self.when_awake(lambda: self._forget(lease_ids))

    def _forget(self, lease_ids: Sequence[LeaseId]) -> None:
        for lease_id in lease_ids:
            self._ends.pop(lease_id, None)

    def heard(self, at_ms: int, lease_ms: int, action: str) -> None:
        self.when_awake(lambda: self._heard(at_ms, lease_ms, action))

    def _heard(self, at_ms: int, lease_ms: int, action: str) -> None:
        self._over_ms, self._action = at_ms + lease_ms, action
        if action != "never":
            over_ms = self._over_ms
            enforce = functools.partial(self._enforce, over_ms)
            self._world.at(self._to_world(over_ms), lambda: self.when_awake(enforce))

    def die(self) -> None:
        """Dies with all its processes; recorded ends are on disk."""
        for process in list(self._processes.values()):
            self._checkers.on_asleep(process.order)
            self.workers.end(process.order.lease_id)
        self._processes.clear()
        self._over_ms, self._action = 0, "never"
        self._hung = None

    def forget_all(self) -> None:
        self.die()
        self._ends.clear()

    def _is_lease_over(self) -> bool:
        return self._action != "never" and self._clock() >= self._over_ms

    def _enforce(self, over_ms: int) -> None:
        if over_ms != self._over_ms or not self._is_lease_over():
            return
        frozen = [p for p in self._processes.values() if not p.frozen]
        for process in frozen:
            if self._action == "stop":
                self._finish(process, Outcome.NODE_FAULT)
                continue
            process.frozen = True
            process.turn += 1
            ran_ms = self._world.now - process.runs_since
            process.left_ms = max(0, process.left_ms - ran_ms)
            if process.limit_ms:
                process.limit_ms = max(1, process.limit_ms - ran_ms)  # the pause does not count
            self._checkers.on_asleep(process.order)
            self.workers.freeze(process.order.lease_id)
            self._checkers.freezes += 1
        if frozen and self._action != "stop":
            self._say(RunsFrozen(lease_ids=tuple(process.order.lease_id for process in frozen)))

    def _worker_exits(self, lease_id: LeaseId) -> None:
        process = self._processes.get(lease_id)
        if process is not None and not process.frozen:
            self._finish(process, Outcome.EXITED)

    def kill_worker(self, lease_id: LeaseId) -> None:
        """A person or the kernel sends SIGKILL."""
        process = self._processes.get(lease_id)
        if process is not None:
            self._finish(process, Outcome.SIGNALED)

    def _plan_end(self, process: _Process) -> None:
        process.turn += 1
        if process.order.worker is not None:
            return  # it stays until it is told to leave
        turn = process.turn

        times_out = 0 < process.limit_ms < process.left_ms

        def end() -> None:
            if process.turn == turn:
                self._finish(process, Outcome.TIMEOUT if times_out else Outcome.EXITED)

        self._world.after(process.limit_ms if times_out else process.left_ms, end)

    def _finish(self, process: _Process, outcome: Outcome) -> None:
        lease_id = process.order.lease_id
        if self._processes.get(lease_id) is not process:
            return
        del self._processes[lease_id]
        process.turn += 1
        self._checkers.on_asleep(process.order)
        self.workers.end(lease_id)
        if outcome is Outcome.EXITED:
            self._checkers.on_exit(process.order, process.code)
        code = process.code if outcome is Outcome.EXITED else 0
        # A process also ends during a hang; the end is reported afterwards.
        written = self.write_output(process.order)
        self.when_awake(lambda: self._end(process.order, outcome, code=code, output_bytes=written))

    def _end(
        self, order: RunOrder, outcome: Outcome, *, code: int = 0, error: str = "", output_bytes: int = 0
    ) -> None:
        end = RunEnd(
            lease_id=order.lease_id,
            outcome=outcome,
            at_ms=self._clock(),
            exit_code=code,
            error=error,
            output_bytes=output_bytes,
        )
        self._ends[order.lease_id] = (order, end)
        self._say(RunsEnded(ended=(end,)))

    def _say(self, word: RunnerWord) -> None:
        if self.tell is not None:
            self.tell(word)


def _silence_ms(order: RunOrder) -> int:
    return 0 if order.worker is None else order.worker.heartbeat_timeout_ms
