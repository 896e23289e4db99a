"""Idle workers give way: those that are stopped so that a waiting task gets their GPUs, quota or limits.

A worker is idle if no call has a slot of it. It is told to leave; the task gets the GPU when the end is reported, after
the GPU's memory was seen to be free.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Final

from dgpu.core.events import TaskStopRequested
from dgpu.core.index.account import Account, PoolUse
from dgpu.core.index.line import Line
from dgpu.core.index.room import Room
from dgpu.core.model.ids import LeaseId, TaskId, task_name
from dgpu.core.model.lease import Lease
from dgpu.core.refusals import Scope
from dgpu.core.rules.access import access_of
from dgpu.core.rules.admission import admit, beyond_limits, free_milli, held_by, tenant_running
from dgpu.core.rules.durations import NEVER
from dgpu.core.rules.openings import Cluster, opening
from dgpu.core.state import ClusterState

GAVE_WAY: Final = "gave_way"
MAX_HELPED: Final = 64  # waiting lines in one pass
_SCOPES: Final = (Scope.POOL, Scope.TENANT)


class _WithoutIdle(Cluster):
    """The cluster if some leases were gone, and all others stayed for ever."""

    def __init__(self, state: ClusterState, at: int, gone: Container[LeaseId]) -> None:
        super().__init__(state, at)
        self._gone = gone

    def ends_at(self, lease_id: LeaseId) -> int:
        return 0 if lease_id in self._gone else NEVER


def gives_way(state: ClusterState, at: int) -> Iterator[TaskStopRequested]:
    """Serves the first waiting lines in order. Workers that leave already count first."""
    idle, leaving = idle_leases(state), leaving_leases(state)
    if not idle:
        return
    for line in waiting_lines(state):
        if not idle:
            return
        for lease in needed(state, line, idle, leaving, at):
            del idle[lease.id]
            yield TaskStopRequested(
                at=at,
                task_id=lease.task_id,
                lease_id=lease.id,
                reason=GAVE_WAY,
                error=f"idle, and {task_name(line.head)} waits",
                for_task=line.head,
            )


def needed(
    state: ClusterState, line: Line, idle: dict[LeaseId, Lease], leaving: dict[LeaseId, Lease], at: int
) -> list[Lease]:
    """Those of the idle workers that would have to leave for the line. None leaves for a worker of its own app."""
    refusal = admit(state, line, line.claim, access_of(state, line, line.head, at))
    scope = Scope.ROOM if refusal is None else refusal.scope
    own = state.tasks[line.head].worker_of
    usable = {
        lease_id: lease
        for lease_id, lease in idle.items()
        if not own or state.tasks[lease.task_id].worker_of != own
    }
    if scope is Scope.ROOM:
        return _for_room(state, line, usable, leaving, at)
    if scope in _SCOPES:
        return _for_quota(state, line, scope, usable, leaving)
    return []


def idle_leases(state: ClusterState) -> dict[LeaseId, Lease]:
    """Leases of idle workers, the one that has been idle the longest first."""
    workers = sorted(
        (worker.idle_since, worker.task_id) for worker in state.workers.values() if worker.idle_since
    )
    leases = [state.leases[state.tasks[task_id].lease_id] for _, task_id in workers]
    return {lease.id: lease for lease in leases}


def leaving_leases(state: ClusterState) -> dict[LeaseId, Lease]:
    found: dict[LeaseId, Lease] = {}
    for task_id in state.workers:
        lease = state.leases.get(state.tasks[task_id].lease_id)
        if lease is not None and (lease.stopping or state.tasks[task_id].cancelling):
            found[lease.id] = lease
    return found


def waiting_lines(state: ClusterState) -> list[Line]:
    """Lines with a task that may be placed, in order. The bed of a line shows an earlier refusal: another rule may
    refuse it by now.
    """
    found = [
        (line.turn_of(line.head), line)
        for pool in state.queue.pools.values()
        for line in pool.ready
        if not line.shape.app
    ]
    found.sort(key=lambda each: each[0])
    return [line for _, line in found[:MAX_HELPED]]


# GPUs


def _for_room(
    state: ClusterState, line: Line, idle: dict[LeaseId, Lease], leaving: dict[LeaseId, Lease], at: int
) -> list[Lease]:
    """The idle workers to stop; none if the workers that leave are enough, or all of the idle ones are not."""
    enough = _rooms_for(state, line, _WithoutIdle(state, at, leaving), leaving)
    if len(enough) >= line.demand.nodes:
        cluster = _WithoutIdle(state, at, leaving)
        for room in enough[: line.demand.nodes]:
            for lease in _in_the_way(room, line, cluster, leaving):
                del leaving[lease.id]  # promised to this line
        return []
    cluster = _WithoutIdle(state, at, {**leaving, **idle})
    found: list[tuple[int, list[Lease]]] = []
    for room in _rooms_for(state, line, cluster, {**leaving, **idle}):
        victims = _in_the_way(room, line, cluster, idle)
        found.append((len(victims), victims))
    if len(found) < line.demand.nodes:
        return []
    found.sort(key=lambda each: each[0])
    return [lease for _, victims in found[: line.demand.nodes] for lease in victims]


def _rooms_for(state: ClusterState, line: Line, cluster: Cluster, gone: dict[LeaseId, Lease]) -> list[Room]:
    """Nodes with room for the line if these leases were gone. For a single node, only the nodes of the leases."""
    node_ids = dict.fromkeys(lease.node_id for lease in gone.values())
    if line.demand.nodes > 1:
        node_ids = dict.fromkeys(state.rooms.by_node)
    found: list[Room] = []
    for node_id in node_ids:
        room = state.rooms.by_node[node_id]
        made = opening(room, line.demand, cluster)
        if made is not None and made.at == 0:
            found.append(room)
    return found


def _in_the_way(room: Room, line: Line, cluster: Cluster, leases: dict[LeaseId, Lease]) -> list[Lease]:
    """Leases on the node that hold GPUs for the line; all of them if the host is short of CPUs or RAM."""
    here = [lease for lease in leases.values() if lease.node_id == room.node_id]
    made = opening(room, line.demand, cluster)
    gpu_ids = set() if made is None else set(made.gpu_ids)
    found = [lease for lease in here if gpu_ids.intersection(lease.gpu_ids)]
    return here if found and _is_short_of_host(room, line) else found


def _is_short_of_host(room: Room, line: Line) -> bool:
    demand = line.demand
    return demand.cpus_milli > room.cpus_free_milli or demand.ram_mb > room.ram_free_mb


# quota and limits


def _for_quota(
    state: ClusterState,
    line: Line,
    scope: Scope,
    idle: dict[LeaseId, Lease],
    leaving: dict[LeaseId, Lease],
) -> list[Lease]:
    """The workers of the pool or tenant that have been idle the longest, as many as needed."""
    holder: PoolUse | Account = line.pool if scope is Scope.POOL else line.account
    milli, memory_mb, tasks = _short(state, line, scope)
    used: list[Lease] = []
    for lease in (*leaving.values(), *idle.values()):
        if milli <= 0 and memory_mb <= 0 and tasks <= 0:
            break
        if not _belongs(state, lease.task_id, holder):
            continue
        milli -= lease.gpu_milli
        memory_mb -= lease.gpu_memory_mb * len(lease.gpu_ids)
        tasks -= 1
        used.append(lease)
    if milli > 0 or memory_mb > 0 or tasks > 0:
        return []
    for lease in used:
        leaving.pop(lease.id, None)  # promised to this line
    return [lease for lease in used if lease.id in idle]


def _short(state: ClusterState, line: Line, scope: Scope) -> tuple[int, int, int]:
    """Quota, GPU memory and running tasks that are missing for the line."""
    claim, account = line.claim, line.account
    if scope is Scope.POOL:
        return claim.milli - free_milli(state, line.pool), 0, 0
    beyond = beyond_limits(account, held_by(account).plus(claim))
    return beyond.milli, beyond.memory_mb, int(tenant_running(account) is not None)


def _belongs(state: ClusterState, task_id: TaskId, holder: PoolUse | Account) -> bool:
    known = state.queue.shapes[state.tasks[task_id].shape_id]
    return known.pool is holder or known.account is holder
