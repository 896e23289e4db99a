"""Invariants of workers and function calls; see invariants."""

from __future__ import annotations

from dgpu.core.model.lease import Lease
from dgpu.core.model.task import TaskStatus
from dgpu.core.state import ClusterState


def check_workers(state: ClusterState) -> None:
    """A call has a slot of a worker of its own app and tenant, on the worker's node. An app exists exactly as long as
    calls or workers of it do.
    """
    used: set[str] = set()
    for task in state.tasks.values():
        shape = state.shapes[task.shape_id]
        _hold(not (task.worker_of and shape.app), f"task {task.id} is a worker and a call")
        live = not task.status.is_final
        _hold((task.id in state.workers) == (live and bool(task.worker_of)), f"task {task.id} is no worker")
        if live and (shape.app or task.worker_of):
            used.add(shape.app or task.worker_of)
    _hold(used == set(state.apps), "apps without calls and workers, or calls without an app")
    for task_id, worker in state.workers.items():
        task = state.tasks[task_id]
        app = state.apps[worker.app_id]
        _hold(worker.app_id == task.worker_of, f"worker {task_id} is of another app")
        _hold(
            state.shapes[task.shape_id].tenant_id == app.spec.shape.tenant_id,
            f"worker {task_id} is of another tenant",
        )
        _hold(task.status is TaskStatus.RUNNING or not worker.ready, f"worker {task_id} is ready and waits")
        calls = state.crews.queued(task.lease_id)
        _hold(not worker.idle_since or (worker.ready and not calls), f"worker {task_id} is idle and busy")
    for lease in state.leases.values():
        if lease.worker:
            _check_slot(state, lease)


def _check_slot(state: ClusterState, lease: Lease) -> None:
    lease_id = lease.id
    host = state.leases.get(lease.worker)
    _hold(host is not None and host.task_id in state.workers, f"lease {lease_id} is a slot of no worker")
    if host is None:
        return
    shape, of_host = (state.shapes[state.tasks[each.task_id].shape_id] for each in (lease, host))
    _hold(shape.app == state.workers[host.task_id].app_id, f"lease {lease_id} is a slot of another app")
    _hold(shape.tenant_id == of_host.tenant_id, f"lease {lease_id} is a slot of another tenant")
    _hold(lease.node_id == host.node_id, f"lease {lease_id} is on another node than its worker")


def _hold(holds: bool, breach: str) -> None:
    if not holds:
        raise AssertionError(breach)
