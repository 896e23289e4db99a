"""Applies events to tasks, gangs and their leases. A gang has a lease for each of its ranks."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Final

from msgspec.structs import replace

from dgpu.core.apply.calls import (
    add_apps,
    free_slot,
    give_slot,
    note_call_began,
    note_call_ended,
    note_call_run,
    note_submitted,
    note_worker_ended,
    note_worker_leaves,
)
from dgpu.core.apply.dependencies import await_others, tell_dependents, wait_no_more
from dgpu.core.apply.health import note_freed
from dgpu.core.apply.holdings import note_released
from dgpu.core.events import (
    CallsFailed,
    GangPlaced,
    KeysForgotten,
    PriorityChanged,
    RankEnded,
    TaskCancelRequested,
    TaskFinished,
    TaskPlaced,
    TaskRequeued,
    TasksCancelled,
    TasksForgotten,
    TasksSubmitted,
    TaskStarted,
)
from dgpu.core.index.line import KnownShape
from dgpu.core.model.gang import Gang, failure_of
from dgpu.core.model.idempotency import PackedKey, pack
from dgpu.core.model.ids import NO_LEASE, NO_TASK, GpuId, LeaseId, NodeId, TaskId
from dgpu.core.model.lease import Lease
from dgpu.core.model.run_times import note_run
from dgpu.core.model.task import Shape, Task, TaskSpec, TaskStatus, new_tasks
from dgpu.core.model.wall_span import at_of_wall
from dgpu.core.state import ClusterState

# Local names: looking up an enum member costs more than changing a field.
_PENDING: Final = TaskStatus.PENDING
_RUNNING: Final = TaskStatus.RUNNING


def apply_submitted(state: ClusterState, event: TasksSubmitted) -> None:
    task_id = event.first_id
    if event.apps:
        add_apps(state, event)
    for count, spec in event.entries:
        _add_tasks(state, task_id, count, spec, event.at)
        task_id = TaskId(task_id + count)
    state.next_task_id = task_id
    if event.idempotency_key:
        state.key_ring.add(packed_key(event))


def packed_key(event: TasksSubmitted) -> PackedKey:
    return pack(
        event.idempotency_key,
        first_id=event.first_id,
        count=sum(count for count, _ in event.entries),
        at=event.at,
        fingerprint=event.fingerprint,
    )


def apply_placed(state: ClusterState, event: TaskPlaced) -> None:
    task = state.tasks[event.task_id]
    known = state.queue.shapes[task.shape_id]
    lease = lease_of(event, known.shape, state.nonce)
    state.next_lease_id = LeaseId(event.lease_id + 1)
    state.leases[event.lease_id] = lease
    put_on(state, task, known, event, event.gpu_ids)
    if lease.worker:
        give_slot(state, lease)
        return
    state.rooms.grant(lease)
    state.hold(known, lease)


def lease_of(event: TaskPlaced, shape: Shape, nonce: str, rank: int = 0) -> Lease:
    return Lease(
        id=event.lease_id,
        task_id=event.task_id,
        node_id=event.node_id,
        gpu_ids=event.gpu_ids,
        cpus_milli=shape.cpus_milli,
        ram_mb=shape.ram_mb,
        granted_at=event.at,
        share_milli=event.share_milli,
        gpu_memory_mb=event.gpu_memory_mb,
        rank=rank,
        nonce=nonce,
        expected_ms=event.expected_ms,
        worker=event.worker,
    )


def put_on(
    state: ClusterState,
    task: Task,
    known: KnownShape,
    event: TaskPlaced,
    gpu_ids: tuple[GpuId, ...],
    node_ids: tuple[NodeId, ...] = (),
) -> None:
    """The task no longer waits: it holds one lease or several."""
    if task.id in state.reservations:
        state.let_go(task.id)
    state.queue.remove(task)
    state.tasks[task.id] = replace(
        task,
        status=_RUNNING,
        attempt=event.attempt,
        eligible_at=0,
        lease_id=event.lease_id,
        node_id=event.node_id,
        gpu_ids=gpu_ids,
        node_ids=node_ids,
        started_at=0,
        reason="",
        error="",
        ran_on=state.leases[event.worker].task_id if event.worker else NO_TASK,
    )
    _count_running(state, known.shape, 1)


def apply_started(state: ClusterState, event: TaskStarted) -> None:
    state.leases[event.lease_id] = replace(state.leases[event.lease_id], started=True)
    task = state.tasks[event.task_id]
    if not task.started_at:  # in a gang, the first rank counts
        task = state.tasks[task.id] = replace(task, started_at=event.started_at)
        if worker := state.leases[event.lease_id].worker:
            note_call_began(state, worker)
            return
        state.hasten(state.leases_of(task))
        state.note_expiry(task)


def apply_finished(state: ClusterState, event: TaskFinished) -> None:
    task = state.tasks[event.task_id]
    shape = state.shapes[task.shape_id]
    if event.started_at and not task.started_at:
        task = replace(task, started_at=event.started_at)
    _release_all(state, task, event.at)
    if shape.app:
        note_call_run(state, shape.app, task, event)
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
    if not shape.app and not task.worker_of:
        note_run(state.run_times, shape, state.tasks[task.id], event.at)


def apply_requeued(state: ClusterState, event: TaskRequeued) -> None:
    task = state.tasks[event.task_id]
    _release_all(state, task, event.at)
    task = state.tasks[task.id] = replace(
        task,
        status=_PENDING,
        lease_id=NO_LEASE,
        gpu_ids=(),
        node_ids=(),
        started_at=0,
        retries=task.retries + event.counted,
        eligible_at=event.eligible_at,
        reason=event.reason,
        error=event.error,
    )
    state.queue.add(task)


def apply_cancel_requested(state: ClusterState, event: TaskCancelRequested) -> None:
    task = state.tasks[event.task_id] = replace(state.tasks[event.task_id], cancelling=True)
    if state.leases[task.lease_id].worker:
        return
    if task.worker_of:
        note_worker_leaves(state, task.id)
    state.hasten(state.leases_of(task))


def apply_cancelled(state: ClusterState, event: TasksCancelled) -> None:
    _end_waiting(state, event, TaskStatus.CANCELLED, "")


def apply_calls_failed(state: ClusterState, event: CallsFailed) -> None:
    _end_waiting(state, event, TaskStatus.FAILED, event.error)


def _end_waiting(
    state: ClusterState, event: TasksCancelled | CallsFailed, status: TaskStatus, error: str
) -> None:
    tasks = [state.tasks[task_id] for task_id in event.task_ids]
    if state.reservations:
        for task_id in event.task_ids:
            state.let_go(task_id)
    state.queue.remove_many(tasks)
    state.stirred = True  # other tasks may no longer need their quota
    # All of these leave the queue before any is marked as ended: one may have waited for another.
    errors = [wait_no_more(state, task) for task in tasks] if state.after else [""] * len(tasks)
    for task, unmet in zip(tasks, errors, strict=True):
        _end(
            state,
            replace(
                task,
                status=status,
                eligible_at=0,
                finished_at=event.at,
                reason=event.reason,
                error=unmet or error,
                held=False,
                ended_at=event.at,
            ),
        )


def apply_forgotten(state: ClusterState, event: TasksForgotten) -> None:
    for task_id in event.task_ids:
        task = state.tasks.pop(task_id)
        state.leave_shape(task.shape_id)
    left = len(event.task_ids)
    while state.ended and state.ended[0][1] not in state.tasks:
        heappop(state.ended)
        left -= 1
    if left:
        # Other tasks ended at the same time and are before these in the heap. Entries left here would be forgotten
        # twice.
        state.ended = [entry for entry in state.ended if entry[1] in state.tasks]
        heapify(state.ended)


def apply_keys_forgotten(state: ClusterState, event: KeysForgotten) -> None:
    state.key_ring.forget(event.before, event.tenant_id)


def reshape(state: ClusterState, task_id: TaskId, shape: Shape) -> None:
    """A waiting task gets another shape; its age stays."""
    task = state.tasks[task_id]
    known = state.know(shape)
    state.let_go(task_id)
    state.queue.remove(task)
    known.uses += 1
    reshaped = state.tasks[task_id] = replace(task, shape_id=known.shape_id)
    state.queue.add(reshaped, apart=state.is_apart(task))
    state.leave_shape(task.shape_id)
    state.stirred = True


def apply_priority(state: ClusterState, event: PriorityChanged) -> None:
    for task_id, _ in event.tasks:
        shape = state.shapes[state.tasks[task_id].shape_id]
        reshape(state, task_id, replace(shape, priority=event.priority))


def _add_tasks(state: ClusterState, first_id: TaskId, count: int, spec: TaskSpec, at: int) -> None:
    shape = spec.shape
    if spec.array_limit:
        shape = replace(shape, array_id=first_id, array_limit=spec.array_limit)
    known = state.know(shape)
    known.uses += count
    if spec.worker_of or shape.app:
        note_submitted(state, spec, first_id, count)
    begins_at = at_of_wall(state.wall, spec.begins_ms) if spec.begins_ms else 0
    delayed = begins_at > at
    tasks = new_tasks(
        spec, first_id, count, shape_id=known.shape_id, at=at, eligible_at=begins_at if delayed else 0
    )
    state.tasks.update(tasks)
    if spec.after:
        await_others(state, list(tasks), spec.after)
    apart = spec.held or bool(spec.after)
    if delayed and not apart:
        for task in tasks.values():
            state.queue.add(task)
    else:
        state.queue.extend(known, tasks, apart=apart)


def _count_running(state: ClusterState, shape: Shape, change: int) -> None:
    if shape.array_id:
        state.queue.count_running(shape, change)


def _release_all(state: ClusterState, task: Task, at: int) -> None:
    _count_running(state, state.shapes[task.shape_id], -1)
    leases = state.leases_of(task)
    state.gangs.pop(task.id, None)
    for lease_id in leases:
        _release(state, lease_id, at)


def _release(state: ClusterState, lease_id: LeaseId, at: int) -> None:
    lease = state.leases.pop(lease_id)
    if lease.worker:
        free_slot(state, lease, at)
        return
    state.rooms.release(lease)
    state.bookings.ends.forget(lease_id)
    note_freed(state, lease)
    note_released(state, lease, at)
    # A GPU that left its node while leased is forgotten with its lease.
    gone = [
        gpu_id for gpu_id in lease.gpu_ids if state.gpus[gpu_id].gone and gpu_id not in state.rooms.holders
    ]
    if gone:
        for gpu_id in gone:
            del state.gpus[gpu_id]
        listed = state.rooms.by_node[lease.node_id].gpu_ids
        state.rooms.refresh(lease.node_id, [state.gpus[gpu_id] for gpu_id in listed if gpu_id in state.gpus])


def _end(state: ClusterState, task: Task) -> None:
    state.tasks[task.id] = task
    heappush(state.ended, (task.ended_at, task.id))
    if state.after:
        tell_dependents(state, task)
    if task.worker_of:
        note_worker_ended(state, task)
    elif app_id := state.shapes[task.shape_id].app:
        note_call_ended(state, app_id)


def apply_gang_placed(state: ClusterState, event: GangPlaced) -> None:
    task = state.tasks[event.task_id]
    known = state.queue.shapes[task.shape_id]
    for rank, placed in enumerate(event.ranks):
        lease = lease_of(placed, known.shape, state.nonce, rank)
        state.leases[lease.id] = lease
        state.rooms.grant(lease)
        state.hold(known, lease)
    state.next_lease_id = LeaseId(event.ranks[-1].lease_id + 1)
    state.gangs[task.id] = Gang(leases=tuple(placed.lease_id for placed in event.ranks))
    put_on(
        state,
        task,
        known,
        event.ranks[0],
        gpu_ids=tuple(gpu_id for placed in event.ranks for gpu_id in placed.gpu_ids),
        node_ids=tuple(placed.node_id for placed in event.ranks),
    )


def apply_rank_ended(state: ClusterState, event: RankEnded) -> None:
    lease = replace(state.leases[event.lease_id], ended=True)
    state.leases[lease.id] = lease
    note_freed(state, lease)
    gang = state.gangs[event.task_id]
    failed = failure_of(event, lease.rank)
    if failed is None or gang.failed is not None:
        return
    state.gangs[event.task_id] = replace(gang, failed=failed)
    state.hasten(gang.leases)
    for lease_id in gang.leases:
        other = state.leases[lease_id]
        if not other.ended and not other.stopping:
            state.leases[lease_id] = replace(other, stopping="rank_ended")
