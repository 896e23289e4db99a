"""Checks of the promises. They are told of every process, every acknowledgement and every commit."""

from __future__ import annotations

import json

from dgpu.agent.run.runner import RunOrder
from dgpu.core.digest import digest
from dgpu.core.events import (
    CallsFailed,
    EpochBegan,
    Event,
    GangPlaced,
    TaskFinished,
    TaskPlaced,
    TasksCancelled,
    TasksForgotten,
    TasksSubmitted,
)
from dgpu.core.invariants import check_invariants
from dgpu.core.model.ids import LeaseId, NodeId, TaskId, first_lease_of
from dgpu.core.model.task import TaskStatus
from dgpu.core.state import ClusterState
from dgpu.sim.history import SimHistory
from dgpu.sim.output_checker import OutputChecker
from dgpu.wire.ranks import attempt_of

_ALL = LeaseId(1 << 62)  # above every lease
_CHECK_EVERY = 16  # commits; checking all would take most of the time


class Violation(AssertionError):  # noqa: N818 - it names what was found
    """A promise was broken."""


class Checkers:
    def __init__(self, seed: int) -> None:
        self._seed = seed
        # Running processes (not frozen, not ended) by cluster and task, with their attempt. A scheduler that lost all
        # its state is another cluster: its task 1 is a different task.
        self._awake: dict[tuple[str, TaskId], dict[LeaseId, tuple[int, NodeId]]] = {}
        self._ended: dict[TaskId, TaskStatus] = {}
        self._ended_for_readers: dict[TaskId, TaskStatus] = {}
        self._details: dict[TaskId, dict[str, int]] = {}  # the demands of each submitted task
        self._exits: dict[tuple[str, TaskId], dict[LeaseId, int]] = {}
        self._standing: frozenset[LeaseId] = frozenset()  # durable leases without an end in the journal
        self._lost_below = LeaseId(
            0
        )  # the ends of earlier leases may have been lost, which an operator accepted
        self._cluster_id = ""
        self._commits = 0
        self._granted: set[tuple[str, LeaseId]] = set()
        self._workers: set[TaskId] = set()
        self._without_worker: set[TaskId] = set()  # calls that failed because their workers did not start
        self.calls = 0
        self.outputs = OutputChecker(self._violation)
        self.acknowledged: dict[str, tuple[TaskId, ...]] = {}  # by idempotency key
        self.runs = 0
        self.freezes = 0
        self.timeouts = 0
        self.reads_of_ends = 0

    # told by the keepers

    def on_awake(self, order: RunOrder, node_id: NodeId) -> None:
        """A process started, or continues after a freeze. Ranks of one attempt run together, on different nodes."""
        task_id, lease_id, attempt = order.task_id, order.lease_id, attempt_of(order.attempt)
        awake = self._awake.setdefault((order.cluster_id, task_id), {})
        others = {lease: place for lease, place in awake.items() if lease != lease_id}
        if any(other == node_id or number != attempt for number, other in others.values()) or (
            others and not order.env.get("WORLD_SIZE")
        ):
            raise self._violation(
                f"task {task_id} runs under lease {lease_id} on {node_id} and under {others}"
            )
        is_ours = order.cluster_id == self._cluster_id
        if is_ours and self._ended.get(task_id) is TaskStatus.SUCCESS:
            raise self._violation(f"task {task_id} had ended and runs again on {node_id}")
        awake[lease_id] = (attempt, node_id)
        self.runs += 1

    def on_call(self, entrypoint: str, app_id: str) -> None:
        """A worker got a call. The entrypoint of a call in the simulation begins with its app."""
        self.calls += 1
        if not entrypoint.startswith(f"{app_id}:"):
            raise self._violation(f"a worker of {app_id} got the call {entrypoint}")

    def on_asleep(self, order: RunOrder) -> None:
        self._awake.get((order.cluster_id, order.task_id), {}).pop(order.lease_id, None)

    def on_exit(self, order: RunOrder, code: int) -> None:
        self._exits.setdefault((order.cluster_id, order.task_id), {})[order.lease_id] = code

    def on_end_acknowledged(self, order: RunOrder) -> None:
        """The agent was told that the end is durable and forgets it."""
        if order.lease_id in self._standing and order.cluster_id in {"", self._cluster_id}:
            raise self._violation(
                f"the end of task {order.task_id} under {order.lease_id} was acknowledged, but is not in the journal"
            )

    # told by clients and the scheduler

    def on_acknowledged(self, key: str, task_ids: tuple[TaskId, ...], detail: bytes) -> None:
        self._details.update(dict.fromkeys(task_ids, json.loads(detail)))
        known = self.acknowledged.setdefault(key, task_ids)
        if known != task_ids:
            raise self._violation(f"submit {key} was answered by {known}, then by {task_ids}")

    def on_committed(self, state: ClusterState, events: tuple[Event, ...], history: SimHistory) -> None:
        for event in events:
            if isinstance(event, EpochBegan):
                self._cluster_id = event.cluster_id
                if self._lost_below == _ALL:
                    self._lost_below = first_lease_of(event.epoch)
            self._check_lease_ids(event)
            if isinstance(event, TasksForgotten) and not history.ended.keys() >= set(event.task_ids):
                raise self._violation(f"tasks left the memory before the history contained them: {event}")
            if isinstance(event, TaskFinished):
                self._check_end(event)
                self._ended[event.task_id] = event.status
            elif isinstance(event, TasksCancelled):
                self._ended.update(dict.fromkeys(event.task_ids, TaskStatus.CANCELLED))
            elif isinstance(event, CallsFailed):
                self._ended.update(dict.fromkeys(event.task_ids, TaskStatus.FAILED))
                self._without_worker.update(event.task_ids)
            elif isinstance(event, TasksSubmitted):
                self._note_workers(event)
        self._note_standing(state)
        self._commits += 1
        if self._commits % _CHECK_EVERY == 0:
            check_invariants(state)

    def _note_workers(self, event: TasksSubmitted) -> None:
        first = int(event.first_id)
        for count, spec in event.entries:
            if spec.worker_of:
                self._workers.update(map(TaskId, range(first, first + count)))
            first += count

    def _check_lease_ids(self, event: Event) -> None:
        """A report or an order of an earlier lease must never fit a later one."""
        if isinstance(event, TaskPlaced | GangPlaced):
            placed = event.ranks if isinstance(event, GangPlaced) else (event,)
            for one in placed:
                if (self._cluster_id, one.lease_id) in self._granted:
                    raise self._violation(f"lease {one.lease_id} of task {one.task_id} was given before")
                self._granted.add((self._cluster_id, one.lease_id))

    def _check_end(self, event: TaskFinished) -> None:
        if event.task_id in self._ended:
            raise self._violation(f"task {event.task_id} ended twice")
        self.timeouts += event.reason == "timeout"
        if event.task_id in self._workers:
            return  # one that was told to leave succeeds, whatever its process did
        exits = self._exits.get((self._cluster_id, event.task_id), {})
        if event.status is TaskStatus.SUCCESS and exits.get(event.lease_id) != 0:
            raise self._violation(
                f"task {event.task_id} succeeded, but none of its processes under {event.lease_id} did"
            )
        if event.exit_code and event.reason == "" and event.exit_code not in exits.values():
            raise self._violation(f"task {event.task_id} has an exit code that none of its runs had: {event}")
        awake = self._awake.get((self._cluster_id, event.task_id))
        if event.status is TaskStatus.SUCCESS and awake:
            raise self._violation(f"task {event.task_id} succeeded, and {awake} still runs")

    def end_seen(self, task_id: TaskId) -> TaskStatus | None:
        """The end that a client has read."""
        return self._ended_for_readers.get(task_id)

    def on_read(
        self, task_id: TaskId, state: ClusterState, history: SimHistory, seen: TaskStatus | None
    ) -> None:
        """A client reads an acknowledged task. An end that was `seen` before the read was requested must stay."""
        if task_id not in self._details:
            return  # lost with the state, which an operator accepted
        status = self._status_of(task_id, state, history)
        if status.is_final:
            self.reads_of_ends += 1
            self._ended_for_readers.setdefault(task_id, status)
        if seen is not None and seen is not status and task_id in self._ended_for_readers:
            raise self._violation(f"task {task_id} was read as {seen} and later as {status}")

    def on_lost(self, state: ClusterState, history: SimHistory) -> None:
        """Groups are lost, and an operator accepted that. The same rules hold for the rest."""
        self.outputs.on_lost()
        self._lost_below = _ALL
        self._workers = {task_id for task_id in self._workers if task_id < state.next_task_id}
        self._without_worker &= history.ended.keys()
        self.acknowledged = {
            key: task_ids for key, task_ids in self.acknowledged.items() if task_ids[-1] < state.next_task_id
        }
        kept = {task_id for task_ids in self.acknowledged.values() for task_id in task_ids}
        self._details = {task_id: detail for task_id, detail in self._details.items() if task_id in kept}
        self._ended = dict(history.ended)
        self._ended_for_readers = {
            task_id: status
            for task_id, status in self._ended_for_readers.items()
            if self._ended.get(task_id) is status
        }

    # asked at a start and at the end

    def check_recovered(self, state: ClusterState, history: SimHistory) -> None:
        check_invariants(state)
        self._note_standing(state)
        # A group may be durable without having been published.
        self._workers.update(task.id for task in state.tasks.values() if task.worker_of)
        for task_ids in self.acknowledged.values():
            for task_id in task_ids:
                status = self._status_of(task_id, state, history)
                if self._ended.get(task_id, status) is not status:
                    raise self._violation(f"the end of task {task_id} is lost")
                if self._ended_for_readers.get(task_id, status) is not status:
                    raise self._violation(f"the end of task {task_id} was read and is lost")

    def _note_standing(self, state: ClusterState) -> None:
        self._standing = frozenset(
            lease.id for lease in state.leases.values() if not lease.ended and lease.id >= self._lost_below
        )

    def check_undone(self, state: ClusterState, replayed: ClusterState) -> None:
        """A group that was not stored never happened: the state in memory must match the journal again."""
        if digest(state) != digest(replayed):
            raise self._violation("a group that was not stored is still in memory")

    def check_at_rest(self, state: ClusterState, replayed: ClusterState, history: SimHistory) -> None:
        self.check_recovered(state, history)
        known = (history.ended.keys() | state.tasks.keys()) - self._workers
        if known != {task_id for ids in self.acknowledged.values() for task_id in ids}:
            raise self._violation("there are tasks that no client knows")
        for task in state.tasks.values():
            if not task.status.is_final:
                raise self._violation(
                    f"task {task.id} never ended: {task.status}, {task.reason or task.error}"
                )
        for task_id, detail in self._details.items():
            self._check_status(task_id, detail, self._status_of(task_id, state, history))
        if digest(state) != digest(replayed):
            raise self._violation("a replay of the journal differs from the state in memory")
        if state.leases:
            raise self._violation(f"leases are left: {sorted(state.leases)}")

    def _check_status(self, task_id: TaskId, detail: dict[str, int], status: TaskStatus) -> None:
        fails = detail["code"] != 0 or detail.get("times_out", False)
        wanted = TaskStatus.FAILED if fails else TaskStatus.SUCCESS
        if task_id in self._without_worker:
            wanted = TaskStatus.FAILED
        if status not in {TaskStatus.CANCELLED, wanted}:
            raise self._violation(f"task {task_id} should be {wanted}: {status}")

    def _status_of(self, task_id: TaskId, state: ClusterState, history: SimHistory) -> TaskStatus:
        task = state.tasks.get(task_id)
        status = history.ended.get(task_id) if task is None else task.status
        if status is None:
            raise self._violation(f"task {task_id} was acknowledged but is lost")
        return status

    def _violation(self, what: str) -> Violation:
        return Violation(f"seed {self._seed}: {what}")
