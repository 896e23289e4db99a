"""Applies events to workers, their apps and function calls.

A call holds a slot of its worker: a lease without GPUs. Rooms, pools and accounts count the worker, not its calls.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from dgpu.core.events import TaskFinished, TasksSubmitted, WorkerChanged
from dgpu.core.model.app import back_off_ms
from dgpu.core.model.ids import LeaseId, NodeId, TaskId
from dgpu.core.model.lease import Lease
from dgpu.core.model.task import Task, TaskSpec, TaskStatus
from dgpu.core.model.worker import LoadedModel, Worker, learned
from dgpu.core.state import ClusterState

_WEIGHT: Final = 8  # an average moves by this part of the difference
_MAX_COUNTED: Final = 1_000


def add_apps(state: ClusterState, event: TasksSubmitted) -> None:
    for app in event.apps:
        state.apps[app.id] = app


def note_submitted(state: ClusterState, spec: TaskSpec, first_id: TaskId, count: int) -> None:
    if spec.worker_of:
        crew = state.crews.open(spec.worker_of)
        for task_id in map(TaskId, range(first_id, first_id + count)):
            state.workers[task_id] = Worker(task_id=task_id, app_id=spec.worker_of)
            crew.workers[task_id] = None
    elif spec.shape.app:
        state.crews.open(spec.shape.app).live += count
        state.crews.stir(spec.shape.app)


def give_slot(state: ClusterState, lease: Lease) -> None:
    state.crews.take(lease.worker, lease.id)
    worker = state.workers[state.leases[lease.worker].task_id]
    if worker.idle_since:
        state.workers[worker.task_id] = replace(worker, idle_since=0)


def free_slot(state: ClusterState, lease: Lease, at: int) -> None:
    """The call under this lease ended. Its worker may be idle now."""
    is_last = state.crews.leave(lease.worker, lease.id)
    worker = state.workers[state.leases[lease.worker].task_id]
    if is_last and worker.ready and not state.is_leaving(state.leases[lease.worker]):
        state.workers[worker.task_id] = replace(worker, idle_since=at)
    state.crews.stir(worker.app_id)


def note_call_began(state: ClusterState, worker: LeaseId) -> None:
    """The wait at its worker no longer counts as run time: the call may cease to be overdue."""
    state.crews.stir(state.workers[state.leases[worker].task_id].app_id)


def note_call_ended(state: ClusterState, app_id: str) -> None:
    state.crews.by_app[app_id].live -= 1
    _forget_unused(state, app_id)


def note_worker_ended(state: ClusterState, task: Task) -> None:
    worker = state.workers.pop(task.id)
    del state.crews.by_app[worker.app_id].workers[task.id]
    app = state.apps[worker.app_id]
    if task.status is TaskStatus.FAILED:
        failures = app.failures + (not worker.ready)
        eligible_at = task.ended_at + back_off_ms(state.settings, max(1, failures))
        error = app.error if worker.ready else task.error
        state.apps[app.id] = replace(app, failures=failures, error=error, eligible_at=eligible_at)
    state.crews.stir(app.id)
    _forget_unused(state, app.id)


def note_worker_leaves(state: ClusterState, task_id: TaskId) -> None:
    """The worker was ordered to end: it is no longer idle, and its app may need another one."""
    worker = state.workers[task_id]
    state.workers[task_id] = replace(worker, idle_since=0)
    state.crews.stir(worker.app_id)


def note_call_run(state: ClusterState, app_id: str, task: Task, event: TaskFinished) -> None:
    """The calls of an app that succeed show how long a call takes."""
    if event.status is not TaskStatus.SUCCESS or not task.started_at:
        return
    app = state.apps[app_id]
    run_us = max(0, event.finished_at - task.started_at) * 1_000
    if app.runs:
        run_us = app.run_us + (run_us - app.run_us) // _WEIGHT
    if run_us != app.run_us or app.runs < _MAX_COUNTED:
        state.apps[app_id] = replace(app, run_us=run_us, runs=min(app.runs + 1, _MAX_COUNTED))


def stir_calls_on(state: ClusterState, node_id: NodeId) -> None:
    """The node takes no more calls: the apps of its workers may need others."""
    for lease in state.node_leases(node_id) if state.workers else ():
        worker = state.workers.get(lease.task_id)
        if worker is not None:
            state.crews.stir(worker.app_id)


def apply_worker_changed(state: ClusterState, event: WorkerChanged) -> None:
    worker, lease = state.workers[event.task_id], state.leases[event.lease_id]
    idle_since = worker.idle_since
    if not event.ready:
        idle_since = 0
    elif not worker.ready and not state.crews.queued(event.lease_id) and not state.is_leaving(lease):
        idle_since = event.at
    known = {model.name: model for model in worker.models}
    for model in event.models:
        _learn(state, known.get(model.name), model, event.at)
    state.workers[event.task_id] = replace(
        worker,
        ready=event.ready,
        models=event.models,
        down=event.down,
        idle_since=idle_since,
        retires_for=event.retires_for,
    )
    app = state.apps[worker.app_id]
    if event.ready and (app.failures or app.error):
        state.apps[app.id] = replace(app, failures=0, error="", eligible_at=0)
    state.crews.stir(app.id)


def _learn(state: ClusterState, before: LoadedModel | None, model: LoadedModel, at: int) -> None:
    if model.loading or not model.load_ms or (before is not None and before.load_ms == model.load_ms):
        return
    learned(state.load_times, model.name, model.load_ms, at)


def _forget_unused(state: ClusterState, app_id: str) -> None:
    if state.crews.close_unused(app_id):
        del state.apps[app_id]
