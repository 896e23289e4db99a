"""Why the tasks of a page wait, in one line each."""

from __future__ import annotations

from typing import Any

from dgpu.core.foresight.barriers import barriers_of, conditions_of
from dgpu.core.foresight.blockers import Blocker, blocker, blockers_of, plural
from dgpu.core.foresight.explain import back_off
from dgpu.core.foresight.reserved import fits_but_for_reservations, room_blockers
from dgpu.core.index.line import Line
from dgpu.core.model.demand import Demand
from dgpu.core.model.ids import ShapeId
from dgpu.core.model.task import Task, TaskStatus
from dgpu.core.rules.place import beside_reservations
from dgpu.core.state import ClusterState
from dgpu.service.access.anonymous import reason_told_to
from dgpu.service.access.principal import Tenants
from dgpu.wire.answers import instant

Reason = dict[str, Any]  # why a task waits, as task_answer takes it
MAX_EXPLAINED = 32  # different demands of one page, and as many checks of reservations
_ALWAYS_EXPLAINED = 8  # of each, for any number of nodes
_MAX_NODES = 1_000  # examined for all demands of one page
_MAX_KEPT_NODES = 256  # the same for checks of reservations, which cost more


class Reasons:
    """Why tasks of a page wait. Tasks with the same demand wait for the same reason. `tenants` are the reader's."""

    def __init__(self, state: ClusterState, at: int, tenants: Tenants) -> None:
        self._state = state
        self._at = at
        self._tenants = tenants
        self._by_shape: dict[tuple[ShapeId, int, int], Reason] = {}
        self._by_demand: dict[Demand, Blocker | None] = {}
        self._by_holder: dict[tuple[Demand, int, int], Blocker | None] = {}
        self._max_demands = _as_many(_MAX_NODES, len(state.nodes))
        self._max_holders = _as_many(_MAX_KEPT_NODES, len(state.rooms.reserved()))

    def of(self, task: Task) -> Reason:
        return reason_told_to(self._tenants, self._of(task))

    def _of(self, task: Task) -> Reason:
        if task.status is not TaskStatus.PENDING:
            return unreachable(self._state, task)
        if conditions := conditions_of(self._state, task):
            return _told(conditions[0])
        if task.eligible_at > self._at:  # its own reason, independent of its shape
            return _told(back_off(task, self._at))
        about = self._about(task)
        reason = self._by_shape.get((task.shape_id, *about))
        if reason is None:
            reason = self._by_shape[task.shape_id, *about] = self._of_shape(task)
        return reason

    def _about(self, task: Task) -> tuple[int, int]:
        """The values of a task, beyond its shape, that decide whether a reservation blocks it."""
        reservations = self._state.reservations
        return (task.timeout_ms, task.id if task.id in reservations else 0) if reservations else (0, 0)

    def _of_shape(self, task: Task) -> Reason:
        line = self._state.queue.line_of(task)
        if barriers := barriers_of(self._state, line, task.id, self._at):
            return _told(barriers[0])
        return self._of_demand(task, line)

    def _of_demand(self, task: Task, line: Line) -> Reason:
        demand = line.demand
        if demand not in self._by_demand:
            if len(self._by_demand) >= self._max_demands:
                return self._in_short(demand)
            self._by_demand[demand] = self._of_room(demand)
        found = self._by_demand[demand]
        if found is not _KEPT:
            return _told(found)
        key = (demand, *self._about(task))
        if key not in self._by_holder:
            if len(self._by_holder) >= self._max_holders:
                return _told(_KEPT)
            blockers = room_blockers(self._state, line, task.id, self._at)
            self._by_holder[key] = blockers[0] if blockers else None
        return _told(self._by_holder[key])

    def _of_room(self, demand: Demand) -> Blocker | None:
        """The same for all tasks with this demand, unless only reservations block it."""
        if self._state.reservations and fits_but_for_reservations(self._state, demand):
            return _KEPT
        blockers = blockers_of(self._state, demand)
        return blockers[0] if blockers else None

    def _in_short(self, demand: Demand) -> Reason:
        """Without examining the nodes."""
        if beside_reservations(self._state, demand):
            return _told(None)
        where = "one node" if demand.nodes == 1 else f"each of {demand.nodes} nodes"
        detail = f"needs {plural(demand.gpus, 'GPU')} on {where}; there is no room for it now"
        return _told(blocker("no_room", detail, gpus=demand.gpus, nodes=demand.nodes))


# Enough is free, but reserved: then the task itself and its time limit matter.
_KEPT = blocker("reserved_for", "free GPUs are reserved for other tasks")


def _as_many(looks: int, nodes: int) -> int:
    return min(MAX_EXPLAINED, max(_ALWAYS_EXPLAINED, looks // max(1, nodes)))


_NEXT = blocker("tasks_ahead", "its turn has not come")


def _told(found: Blocker | None) -> Reason:
    found = found or _NEXT
    return {
        "waiting_code": found.code,
        "waiting": found.detail,
        "blockers": [{"code": found.code, **found.numbers}],
    }


def unreachable(state: ClusterState, task: Task) -> Reason:
    """For a running task: why it is unknown whether it still runs."""
    if task.status is not TaskStatus.RUNNING or task.node_id is None:
        return {}
    node = state.nodes[task.node_id]
    if node.unconfirmed_since:
        since = instant(node.unconfirmed_since)
        words = f"node {node.id} not heard from since the scheduler started at {since}"
        return _told(blocker("node_unconfirmed", words, node=node.id, since=since))
    if not node.offline_since:
        return {}
    since = instant(node.offline_since)
    words = f"node {node.id} unreachable since {since}"
    return _told(blocker("node_unreachable", words, node=node.id, since=since))
