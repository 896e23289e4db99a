"""Busy workers take turns with waiting tasks: one that a task waits for takes no more calls, and then gives way.

A stream of calls never leaves its worker idle. So a task that has waited for `worker_turn_ms` may end the turn of a
worker that has had its GPU for as long, if the task has the same priority or a higher one. The worker ends the calls
that it has, is idle then, and leaves as any idle worker. The next worker of its app waits in the ordinary order.
"""

from __future__ import annotations

from collections.abc import Iterator

from dgpu.core.events import WorkerChanged
from dgpu.core.index.line import Line
from dgpu.core.model.ids import NO_TASK, LeaseId, TaskId
from dgpu.core.model.lease import Lease
from dgpu.core.model.task import TaskStatus
from dgpu.core.model.worker import Worker
from dgpu.core.rules.giving import idle_leases, leaving_leases, needed, waiting_lines
from dgpu.core.state import ClusterState


def retires_for(state: ClusterState, worker: Worker) -> TaskId:
    """The waiting task for which the worker takes no more calls; NO_TASK: it takes calls."""
    task = state.tasks.get(worker.retires_for) if worker.retires_for else None
    return NO_TASK if task is None or task.status is not TaskStatus.PENDING else task.id


def retires(state: ClusterState, at: int) -> Iterator[WorkerChanged]:
    before = at - state.settings.worker_turn_ms
    busy = _busy(state, before)
    if not busy:
        return
    promised = {retires_for(state, worker) for worker in state.workers.values()}
    idle, leaving = idle_leases(state), leaving_leases(state)
    for line in waiting_lines(state):
        if not busy:
            return
        if state.tasks[line.head].created_at > before or line.head in promised:
            continue
        usable = idle | {lease.id: lease for lease in busy.values() if _comes_first(state, line, lease)}
        for lease in needed(state, line, usable, leaving, at):
            if lease.id in busy:
                del busy[lease.id]
                yield _retired(state, lease, line.head, at)
            else:
                idle.pop(lease.id, None)


def _busy(state: ClusterState, before: int) -> dict[LeaseId, Lease]:
    """Workers with calls that have had their GPUs since then, those with the longest turn first."""
    found: list[Lease] = []
    for worker in state.workers.values():
        lease = state.leases.get(state.tasks[worker.task_id].lease_id)
        if lease is None or not worker.ready or worker.down or worker.idle_since or state.is_leaving(lease):
            continue
        if lease.granted_at <= before and not retires_for(state, worker):
            found.append(lease)
    found.sort(key=lambda lease: (lease.granted_at, lease.id))
    return {lease.id: lease for lease in found}


def _comes_first(state: ClusterState, line: Line, lease: Lease) -> bool:
    return line.shape.priority >= state.shapes[state.tasks[lease.task_id].shape_id].priority


def _retired(state: ClusterState, lease: Lease, task_id: TaskId, at: int) -> WorkerChanged:
    worker = state.workers[lease.task_id]
    return WorkerChanged(
        at=at,
        task_id=worker.task_id,
        lease_id=lease.id,
        ready=worker.ready,
        models=worker.models,
        down=worker.down,
        retires_for=task_id,
    )
