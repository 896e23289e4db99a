"""What must hold after every event. A breach is a bug of ours, so it is raised, not returned."""

from __future__ import annotations

from dgpu.core.ids import NO_LEASE, GpuId, NodeId
from dgpu.core.state import ClusterState
from dgpu.core.task import Task, TaskStatus
from dgpu.core.waiting import Waiting


def check_invariants(state: ClusterState) -> None:
    _check_tasks(state)
    _check_leases(state)
    _check_gpus(state)
    _check_numbers(state)
    _check_indexes(state)


def _check_tasks(state: ClusterState) -> None:
    for task_id, task in state.tasks.items():
        _hold(task.id == task_id, f"task {task_id} stands under another id")
        _hold(task.shape_id in state.shapes, f"task {task_id} has no shape")
        running = task.status is TaskStatus.RUNNING
        _hold(
            running == (task.lease_id != NO_LEASE),
            f"task {task_id} is {task.status} with lease {task.lease_id}",
        )
        if running:
            _hold(task.lease_id in state.leases, f"task {task_id} runs without its lease")
        _hold(
            task.status.is_final or not task.ended_at,
            f"task {task_id} is {task.status}, ended {task.ended_at}",
        )
        _hold(running or not task.cancelling, f"task {task_id} is {task.status} and being cancelled")
    _hold({task.shape_id for task in state.tasks.values()} == set(state.shapes), "shapes without a task")


def _check_leases(state: ClusterState) -> None:
    holders: dict[GpuId, int] = {}
    for lease_id, lease in state.leases.items():
        task = state.tasks.get(lease.task_id)
        _hold(task is not None and task.lease_id == lease_id, f"lease {lease_id} is of no running task")
        _hold(lease.node_id in state.nodes, f"lease {lease_id} is on no node")
        if task is not None:
            _hold(_agree(state, task), f"lease {lease_id} differs from its task")
        for gpu_id in lease.gpu_ids:
            _hold(gpu_id not in holders, f"GPU {gpu_id} is leased twice: {holders.get(gpu_id)}, {lease_id}")
            holders[gpu_id] = lease_id
            gpu = state.gpus.get(gpu_id)
            _hold(
                gpu is not None and gpu.node_id == lease.node_id,
                f"lease {lease_id} names a GPU of no such node",
            )


def _agree(state: ClusterState, task: Task) -> bool:
    lease = state.leases[task.lease_id]
    shape = state.shapes[task.shape_id]
    return (
        (lease.node_id, lease.gpu_ids) == (task.node_id, task.gpu_ids)
        and (len(lease.gpu_ids), lease.cpus_milli, lease.ram_mb)
        == (shape.gpus, shape.cpus_milli, shape.ram_mb)
        and (lease.started or not task.started_at)
    )


def _check_gpus(state: ClusterState) -> None:
    leased = {gpu_id for lease in state.leases.values() for gpu_id in lease.gpu_ids}
    for gpu_id, gpu in state.gpus.items():
        _hold(gpu.id == gpu_id and gpu.node_id in state.nodes, f"GPU {gpu_id} is on no node")
        _hold(not gpu.gone or gpu_id in leased, f"GPU {gpu_id} is gone and not leased")


def _check_numbers(state: ClusterState) -> None:
    _hold(all(0 < task_id < state.next_task_id for task_id in state.tasks), "a task id beyond the counter")
    _hold(
        all(0 < lease_id < state.next_lease_id for lease_id in state.leases), "a lease id beyond the counter"
    )
    _hold(
        all(0 < shape_id < state.next_shape_id for shape_id in state.shapes), "a shape id beyond the counter"
    )
    latest = max((max(task.created_at, task.ended_at) for task in state.tasks.values()), default=0)
    _hold(latest <= state.last_at, f"a task of {latest}, later than {state.last_at}")
    ages = [key.created_at for key in state.keys.values()]
    _hold(ages == sorted(ages), "idempotency keys out of order")


def _check_indexes(state: ClusterState) -> None:
    """Every index equals one derived anew from the flat dicts."""
    anew = ClusterState.from_parts(state.parts())
    _hold(_rooms(state) == _rooms(anew), "the index of rooms differs from a rebuild")
    _hold(state.rooms.holders == anew.rooms.holders, "the holders of GPUs differ from a rebuild")
    _hold(state.rooms.counts == anew.rooms.counts, "the counts of GPUs differ from a rebuild")
    _hold(_lines(state.waiting) == _lines(anew.waiting), "the index of waiting tasks differs from a rebuild")
    _hold(state.waiting.count == anew.waiting.count, "the count of waiting tasks differs from a rebuild")
    _hold(state.waiting.by_shape == anew.waiting.by_shape, "the interned shapes differ from a rebuild")
    _hold(sorted(state.ended) == sorted(anew.ended), "the index of ended tasks differs from a rebuild")
    _hold(_expiring(state) == _expiring(anew), "the ends of allocations differ from a rebuild")
    pending = sum(task.status is TaskStatus.PENDING for task in state.tasks.values())
    _hold(state.waiting.count == pending, "the count of waiting tasks is wrong")
    for task_id, eligible_at in state.waiting.delayed_until.items():
        _hold(state.tasks[task_id].eligible_at == eligible_at, f"task {task_id} backs off until another time")


def _rooms(state: ClusterState) -> dict[NodeId, tuple[object, ...]]:
    return {node_id: room.facts() for node_id, room in state.rooms.by_node.items()}


def _lines(waiting: Waiting) -> dict[int, tuple[object, ...]]:
    """Who backs off depends on how far time went in this index, so both kinds are taken together."""
    return {
        shape_id: (line.shape, line.uses, sorted(line.ready + line.delayed))
        for shape_id, line in waiting.lines.items()
    }


def _expiring(state: ClusterState) -> list[tuple[int, int, int]]:
    return sorted(entry for entry in state.expiring if entry[2] in state.leases)


def _hold(holds: bool, breach: str) -> None:
    if not holds:
        raise AssertionError(breach)
