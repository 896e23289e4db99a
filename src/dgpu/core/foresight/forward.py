"""A run ahead: what the core would do from now on if only time passed. It changes its own state.

A running task ends at its time limit or after a learned run time; without either, it runs forever. Ends and passes use
the same code as real ones. Nothing else is assumed: no new task arrives, no node fails, every task succeeds. Nodes that
have not contacted this scheduler yet are assumed to be back at once.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Final, NamedTuple

from dgpu.core.apply.node import confirm_all
from dgpu.core.apply.table import apply
from dgpu.core.commands import ReportFinished, ReportWorkers, RunPass, Tick, WorkerReport
from dgpu.core.decide.endings import time_over
from dgpu.core.decide.schedule import pass_due, run_pass
from dgpu.core.events import Event, GangPlaced, TaskPlaced, TaskStopRequested
from dgpu.core.execute import execute
from dgpu.core.model.ids import LeaseId, NodeId, TaskId
from dgpu.core.model.run_times import RunTimes, kind_of, quantile_ms
from dgpu.core.model.task import Outcome, Task
from dgpu.core.rules.durations import RELEASE_MS, STOP_MS, UNKNOWN, certain_ms
from dgpu.core.rules.workers import run_ms
from dgpu.core.state import ClusterState, next_wake_at

_CHARGE_MS: Final = 60_000  # virtual time between two Ticks if tenants are charged
_MAX_IN_PASS: Final = 1_000
_GRANTS_PER_TASK: Final = 4  # a bound on the work: smaller tasks from further back may start in between
_MAX_ENDS: Final = 200  # between two passes: if thousands end at once, only the requested tasks matter


class Start(NamedTuple):
    at: int
    node_ids: tuple[NodeId, ...]


class Stop(NamedTuple):
    node_id: NodeId
    reason: str


class ForwardRun:
    """Changes `state`. `percent` is the quantile of run times to assume."""

    def __init__(self, state: ClusterState, at: int, *, percent: int, run_times: dict[str, RunTimes]) -> None:
        self.state = state
        self.at = at
        self.starts: dict[TaskId, Start] = {}  # the first start of each task
        self.stops: dict[TaskId, Stop] = {}
        self.grants = 0
        self._left: set[TaskId] = set()  # requested, and not started yet
        self._percent = percent
        self._run_times = run_times
        self._ticked_at = at
        self._ends: list[tuple[int, LeaseId, Outcome]] = []
        confirm_all(state)
        for task_id in list(state.workers):
            if state.tasks[task_id].lease_id:
                self._make_ready(state.tasks[task_id])
        for task_id in sorted({lease.task_id for lease in state.leases.values()}):
            self._expect_end(state.tasks[task_id])

    def pass_now(self) -> None:
        """Starts the tasks that can start at once."""
        self._pass(most=_MAX_IN_PASS)

    def run(self, wanted: set[TaskId]) -> None:
        """Until all of these tasks have started, no further end is known, or too many grants were made."""
        max_grants = _GRANTS_PER_TASK * len(wanted) + _MAX_IN_PASS
        self._pass(most=max_grants)
        self._left = wanted - self.starts.keys()
        while self._left and self.grants < max_grants:
            due_at = self._due_at()
            if due_at is None:
                return
            self.at = max(self.at, due_at)
            self._end_due()
            if self.state.tenants and self.at - self._ticked_at >= _CHARGE_MS:
                self._ticked_at = self.at
                execute(self.state, Tick(at=self.at))
            self._pass(most=max_grants - self.grants)

    # leaves

    def _due_at(self) -> int | None:
        wake_at = next_wake_at(self.state)
        if not self._ends:
            return wake_at
        return self._ends[0][0] if wake_at is None else min(wake_at, self._ends[0][0])

    def _end_due(self) -> None:
        state = self.state
        for _ in range(_MAX_ENDS):
            if not self._ends or self._ends[0][0] > self.at:
                return
            _, lease_id, outcome = heappop(self._ends)
            lease = state.leases.get(lease_id)
            if lease is None:
                continue
            end_task(state, state.tasks[lease.task_id], self.at, outcome)

    def _pass(self, *, most: int) -> None:
        while most > 0:
            placed = self._note(run_pass(self.state, RunPass(at=self.at, limit=min(most, _MAX_IN_PASS))))
            self.grants += placed
            most -= placed
            if not placed or not pass_due(self.state):
                return

    def _note(self, events: tuple[Event, ...]) -> int:
        placed = 0
        for event in events:
            if isinstance(event, TaskPlaced):
                placed += 1
                self._start(event.task_id, (event.node_id,))
            elif isinstance(event, GangPlaced):
                placed += 1
                self._start(event.task_id, tuple(rank.node_id for rank in event.ranks))
            elif isinstance(event, TaskStopRequested):
                node_id = self.state.leases[event.lease_id].node_id
                self.stops.setdefault(event.task_id, Stop(node_id, event.reason))
                heappush(self._ends, (self.at + STOP_MS, event.lease_id, Outcome.STOPPED))
        return placed

    def _start(self, task_id: TaskId, node_ids: tuple[NodeId, ...]) -> None:
        self.starts.setdefault(task_id, Start(self.at, node_ids))
        self._left.discard(task_id)
        task = self.state.tasks[task_id]
        if task.worker_of:
            self._make_ready(task)
        self._expect_end(task)

    def _make_ready(self, task: Task) -> None:
        """Workers are assumed to be ready at once: their start takes seconds."""
        if not self.state.workers[task.id].ready:
            ready = WorkerReport(lease_id=task.lease_id, ready=True)
            execute(self.state, ReportWorkers(at=self.at, workers=(ready,)))

    def _expect_end(self, task: Task) -> None:
        lease = self.state.leases[task.lease_id]
        if task.cancelling or lease.stopping:
            heappush(self._ends, (self.at + STOP_MS, lease.id, Outcome.STOPPED))
            return
        ends_at = self._ends_at(task, task.started_at or lease.granted_at)
        if ends_at is not None:
            heappush(self._ends, (ends_at, lease.id, Outcome.EXITED))

    def _ends_at(self, task: Task, began_at: int) -> int | None:
        certain = certain_ms(task)
        if certain >= UNKNOWN:
            return None
        if any(
            self.state.nodes[self.state.leases[each].node_id].offline_since
            for each in self.state.leases_of(task)
        ):
            return None  # the fate of the run is unknown
        if app_id := self.state.shapes[task.shape_id].app:
            return max(self.at, began_at + run_ms(self.state.apps[app_id]))
        ends = [began_at + certain] if certain else []
        if not task.allocation and self._run_times:
            runs = self._run_times.get(kind_of(self.state.shapes[task.shape_id], task.detail))
            lasts_ms = quantile_ms(runs, self._percent, longer_than_ms=self.at - began_at)
            if lasts_ms is not None:
                ends.append(began_at + lasts_ms + RELEASE_MS)
        return max(min(ends), self.at) if ends else None


def end_task(state: ClusterState, task: Task, at: int, outcome: Outcome = Outcome.EXITED) -> None:
    """Ends a task as a report of its agent would; all ranks of a gang at once."""
    if task.allocation and outcome is Outcome.EXITED:
        apply(state, time_over(task, at))
        return
    for lease_id in state.leases_of(task):
        execute(state, ReportFinished(at=at, lease_id=lease_id, outcome=outcome))
