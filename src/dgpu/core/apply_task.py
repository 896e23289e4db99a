"""What events do to tasks and leases."""

from __future__ import annotations

from heapq import heappop, heappush

from msgspec.structs import replace

from dgpu.core.events import (
    KeysForgotten,
    TaskCancelRequested,
    TaskFinished,
    TaskPlaced,
    TaskRequeued,
    TasksCancelled,
    TasksForgotten,
    TasksSubmitted,
    TaskStarted,
)
from dgpu.core.idempotency import IdempotencyKey
from dgpu.core.ids import NO_LEASE, LeaseId, ShapeId, TaskId
from dgpu.core.lease import Lease
from dgpu.core.line import Line
from dgpu.core.state import ClusterState
from dgpu.core.task import Shape, Task, TaskSpec, TaskStatus

# Looking a member up costs more than the change of a field.
_PENDING, _RUNNING = TaskStatus.PENDING, TaskStatus.RUNNING


def apply_submitted(state: ClusterState, event: TasksSubmitted) -> None:
    task_id = event.first_id
    for count, spec in event.entries:
        _add_tasks(state, task_id, count, spec, event.at)
        task_id = TaskId(task_id + count)
    state.next_task_id = task_id
    if event.idempotency_key:
        # An old key that was still known goes to the end: keys stand by age.
        state.keys.pop(event.idempotency_key, None)
        state.keys[event.idempotency_key] = IdempotencyKey(
            first_id=event.first_id,
            count=task_id - event.first_id,
            created_at=event.at,
            fingerprint=event.fingerprint,
        )


def apply_placed(state: ClusterState, event: TaskPlaced) -> None:
    task = state.tasks[event.task_id]
    shape = state.shapes[task.shape_id]
    lease = Lease(
        id=event.lease_id,
        task_id=task.id,
        node_id=event.node_id,
        gpu_ids=event.gpu_ids,
        cpus_milli=shape.cpus_milli,
        ram_mb=shape.ram_mb,
        granted_at=event.at,
    )
    state.next_lease_id = LeaseId(event.lease_id + 1)
    state.leases[lease.id] = lease
    state.tasks[task.id] = replace(
        task,
        status=_RUNNING,
        attempt=event.attempt,
        eligible_at=0,
        lease_id=lease.id,
        node_id=event.node_id,
        gpu_ids=event.gpu_ids,
        started_at=0,
        reason="",
        error="",
    )
    state.waiting.remove(task.shape_id, task.id)
    state.rooms.grant(lease)


def apply_started(state: ClusterState, event: TaskStarted) -> None:
    task = replace(state.tasks[event.task_id], started_at=event.started_at)
    state.tasks[task.id] = task
    state.leases[event.lease_id] = replace(state.leases[event.lease_id], started=True)
    state.note_expiry(task)


def apply_finished(state: ClusterState, event: TaskFinished) -> None:
    task = state.tasks[event.task_id]
    _release(state, event.lease_id)
    _end(
        state,
        replace(
            task,
            status=event.status,
            lease_id=NO_LEASE,
            finished_at=event.finished_at,
            exit_code=event.exit_code,
            reason=event.reason,
            error=event.error,
            cancelling=False,
            ended_at=event.at,
        ),
    )


def apply_requeued(state: ClusterState, event: TaskRequeued) -> None:
    task = state.tasks[event.task_id]
    _release(state, event.lease_id)
    state.tasks[task.id] = replace(
        task,
        status=_PENDING,
        lease_id=NO_LEASE,
        gpu_ids=(),
        started_at=0,
        retries=task.retries + event.counted,
        eligible_at=event.eligible_at,
        reason=event.reason,
        error=event.error,
    )
    state.waiting.add(task.shape_id, task.id, event.eligible_at)


def apply_cancel_requested(state: ClusterState, event: TaskCancelRequested) -> None:
    state.tasks[event.task_id] = replace(state.tasks[event.task_id], cancelling=True)


def apply_cancelled(state: ClusterState, event: TasksCancelled) -> None:
    tasks = [state.tasks[task_id] for task_id in event.task_ids]
    state.waiting.remove_many((task.shape_id, task.id) for task in tasks)
    for task in tasks:
        _end(
            state,
            replace(
                task,
                status=TaskStatus.CANCELLED,
                eligible_at=0,
                finished_at=event.at,
                reason="cancelled",
                error="",
                ended_at=event.at,
            ),
        )


def apply_forgotten(state: ClusterState, event: TasksForgotten) -> None:
    for task_id in event.task_ids:
        task = state.tasks.pop(task_id)
        line = state.waiting.lines[task.shape_id]
        line.uses -= 1
        if not line.uses:
            state.waiting.close_line(task.shape_id)
            del state.shapes[task.shape_id]
    while state.ended and state.ended[0][1] not in state.tasks:
        heappop(state.ended)


def apply_keys_forgotten(state: ClusterState, event: KeysForgotten) -> None:
    old = []
    for key, value in state.keys.items():
        if value.created_at >= event.before:
            break
        old.append(key)
    for key in old:
        del state.keys[key]


def _add_tasks(state: ClusterState, first_id: TaskId, count: int, spec: TaskSpec, at: int) -> None:
    line = _line(state, spec.shape)
    line.uses += count
    shape_id = line.shape_id
    tasks = state.tasks
    detail, timeout_ms = spec.detail, spec.timeout_ms or 0
    max_retries, restart, allocation = spec.max_retries, spec.restart, spec.allocation
    task_ids = [TaskId(number) for number in range(first_id, first_id + count)]
    for task_id in task_ids:
        tasks[task_id] = Task(
            id=task_id,
            shape_id=shape_id,
            detail=detail,
            created_at=at,
            timeout_ms=timeout_ms,
            max_retries=max_retries,
            restart=restart,
            allocation=allocation,
        )
    state.waiting.extend(line, task_ids)


def _line(state: ClusterState, shape: Shape) -> Line:
    shape_id = state.waiting.by_shape.get(shape)
    if shape_id is not None:
        return state.waiting.lines[shape_id]
    shape_id = state.next_shape_id
    state.next_shape_id = ShapeId(shape_id + 1)
    state.shapes[shape_id] = shape
    return state.waiting.open_line(shape_id, shape)


def _release(state: ClusterState, lease_id: LeaseId) -> None:
    lease = state.leases.pop(lease_id)
    state.rooms.release(lease)
    # A card that left its node while leased is forgotten with its lease.
    gone = [gpu_id for gpu_id in lease.gpu_ids if state.gpus[gpu_id].gone]
    if gone:
        for gpu_id in gone:
            del state.gpus[gpu_id]
        listed = state.rooms.by_node[lease.node_id].gpu_ids
        state.rooms.refresh(lease.node_id, [state.gpus[gpu_id] for gpu_id in listed if gpu_id in state.gpus])


def _end(state: ClusterState, task: Task) -> None:
    state.tasks[task.id] = task
    heappush(state.ended, (task.ended_at, task.id))
