"""What must hold, whatever happened. Told of every process, every acknowledgement and every commit."""

from __future__ import annotations

import json

from dgpu.agent.run.runner import RunOrder
from dgpu.core.digest import digest
from dgpu.core.events import Event, TaskFinished, TasksCancelled, TasksForgotten
from dgpu.core.ids import LeaseId, NodeId, TaskId
from dgpu.core.invariants import check_invariants
from dgpu.core.state import ClusterState
from dgpu.core.task import TaskStatus
from dgpu.sim.history import SimHistory
from dgpu.wire.ranks import attempt_of

_CHECK_EVERY = 16  # commits; checking all would take most of the time


class Violation(AssertionError):  # noqa: N818 - it names what was found
    """A promise was broken."""


class Checkers:
    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._awake: dict[
            TaskId, dict[LeaseId, tuple[int, NodeId]]
        ] = {}  # processes that are neither frozen nor over, with their attempt
        self._ended: dict[TaskId, TaskStatus] = {}
        self._ended_for_readers: dict[TaskId, TaskStatus] = {}
        self._details: dict[TaskId, dict[str, int]] = {}  # what each task was submitted for
        self._exits: dict[LeaseId, int] = {}
        self._commits = 0
        self.acknowledged: dict[str, tuple[TaskId, ...]] = {}  # by idempotency key
        self.runs = 0
        self.freezes = 0
        self.timeouts = 0
        self.reads_of_ends = 0

    # told by the keepers

    def on_awake(self, order: RunOrder, node_id: NodeId) -> None:
        """A process started, or goes on after it was frozen. Ranks of one attempt run together, on nodes of their own."""
        task_id, lease_id, attempt = order.task_id, order.lease_id, attempt_of(order.attempt)
        others = {lease: place for lease, place in self._awake.get(task_id, {}).items() if lease != lease_id}
        if any(other == node_id or number != attempt for number, other in others.values()) or (
            others and not order.env.get("WORLD_SIZE")
        ):
            raise self._violation(
                f"task {task_id} runs under lease {lease_id} on {node_id} and under {others}"
            )
        if self._ended.get(task_id) is TaskStatus.SUCCESS:
            raise self._violation(f"task {task_id} was over, and runs again on {node_id}")
        self._awake.setdefault(task_id, {})[lease_id] = (attempt, node_id)
        self.runs += 1

    def on_asleep(self, task_id: TaskId, lease_id: LeaseId) -> None:
        self._awake.get(task_id, {}).pop(lease_id, None)

    def on_exit(self, lease_id: LeaseId, code: int) -> None:
        self._exits[lease_id] = code

    # told by clients and the scheduler

    def on_acknowledged(self, key: str, task_ids: tuple[TaskId, ...], detail: bytes) -> None:
        self._details.update(dict.fromkeys(task_ids, json.loads(detail)))
        known = self.acknowledged.setdefault(key, task_ids)
        if known != task_ids:
            raise self._violation(f"submit {key} was answered by {known}, then by {task_ids}")

    def on_committed(self, state: ClusterState, events: tuple[Event, ...], history: SimHistory) -> None:
        for event in events:
            if isinstance(event, TasksForgotten) and not history.ended.keys() >= set(event.task_ids):
                raise self._violation(f"tasks left the memory before the history had them: {event}")
            if isinstance(event, TaskFinished):
                self._check_end(event)
                self._ended[event.task_id] = event.status
            elif isinstance(event, TasksCancelled):
                self._ended.update(dict.fromkeys(event.task_ids, TaskStatus.CANCELLED))
        self._commits += 1
        if self._commits % _CHECK_EVERY == 0:
            check_invariants(state)

    def _check_end(self, event: TaskFinished) -> None:
        if event.task_id in self._ended:
            raise self._violation(f"task {event.task_id} ended twice")
        self.timeouts += event.reason == "timeout"
        if event.status is TaskStatus.SUCCESS and self._exits.get(event.lease_id) != 0:
            raise self._violation(
                f"task {event.task_id} succeeded, but no process under {event.lease_id} did"
            )
        if event.status is TaskStatus.SUCCESS and self._awake.get(event.task_id):
            raise self._violation(
                f"task {event.task_id} succeeded, and {self._awake[event.task_id]} still runs"
            )

    def on_read(self, task_id: TaskId, state: ClusterState, history: SimHistory) -> None:
        """A client reads a task that it was told of. An end that it saw once must stay."""
        status = self._status_of(task_id, state, history)
        if status.is_final:
            self.reads_of_ends += 1
            self._ended_for_readers.setdefault(task_id, status)
        if self._ended_for_readers.get(task_id, status) is not status:
            seen = self._ended_for_readers[task_id]
            raise self._violation(f"task {task_id} was read as {seen} and later as {status}")

    # asked at a start and at the end

    def check_recovered(self, state: ClusterState, history: SimHistory) -> None:
        check_invariants(state)
        for task_ids in self.acknowledged.values():
            for task_id in task_ids:
                status = self._status_of(task_id, state, history)
                if self._ended.get(task_id, status) is not status:
                    raise self._violation(f"the end of task {task_id} is lost")
                if self._ended_for_readers.get(task_id, status) is not status:
                    raise self._violation(f"the end of task {task_id} was read and is lost")

    def check_at_rest(self, state: ClusterState, replayed: ClusterState, history: SimHistory) -> None:
        self.check_recovered(state, history)
        known = history.ended.keys() | state.tasks.keys()
        if known != {task_id for ids in self.acknowledged.values() for task_id in ids}:
            raise self._violation("there are tasks that no client was told of")
        for task in state.tasks.values():
            if not task.status.is_final:
                raise self._violation(
                    f"task {task.id} never ended: {task.status}, {task.reason or task.error}"
                )
        for task_id, detail in self._details.items():
            self._check_status(task_id, detail, self._status_of(task_id, state, history))
        if digest(state) != digest(replayed):
            raise self._violation("the journal makes another state than the one in memory")
        if state.leases:
            raise self._violation(f"leases are left: {sorted(state.leases)}")

    def _check_status(self, task_id: TaskId, detail: dict[str, int], status: TaskStatus) -> None:
        fails = detail["code"] != 0 or detail.get("times_out", False)
        wanted = TaskStatus.FAILED if fails else TaskStatus.SUCCESS
        if status not in {TaskStatus.CANCELLED, wanted}:
            raise self._violation(f"task {task_id} should be {wanted}: {status}")

    def _status_of(self, task_id: TaskId, state: ClusterState, history: SimHistory) -> TaskStatus:
        task = state.tasks.get(task_id)
        status = history.ended.get(task_id) if task is None else task.status
        if status is None:
            raise self._violation(f"task {task_id} was acknowledged and is lost")
        return status

    def _violation(self, what: str) -> Violation:
        return Violation(f"seed {self._seed}: {what}")
