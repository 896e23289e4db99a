"""The tasks that a search finds among those that wait or run. Ended tasks and the history are not examined."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from dgpu.core.commands import CancelTasks
from dgpu.core.model.ids import TaskId, task_name
from dgpu.core.model.task import Shape, Task, TaskStatus
from dgpu.core.state import ClusterState
from dgpu.service.rest.backend import Backend
from dgpu.service.rest.search_terms import Terms, matcher, parse_search
from dgpu.service.rest.searching import AT_A_TIME
from dgpu.service.views.views import Filter


async def live_ids(
    backend: Backend, filters: CancelTasks, terms: dict[str, str], tenants: tuple[str, ...] | None
) -> tuple[TaskId, ...]:
    """Waiting tasks come first: otherwise they would start on the GPUs of cancelled ones. Each step is short, so that
    other requests get their turn.
    """
    wanted = Filter(
        status=filters.status,
        tenant=filters.tenant_id,
        pool=filters.pool,
        priority=filters.priority,
        tenants=tenants,
    )
    array = None if filters.array_id is None else task_name(filters.array_id)
    matches = matcher(parse_search(Terms(array=array, **terms)))
    found: dict[TaskStatus, list[TaskId]] = {TaskStatus.PENDING: [], TaskStatus.RUNNING: []}
    edge: int | None = None
    while True:
        edge = await backend.runtime.read(
            partial(_step, backend, wanted=wanted, matches=matches, edge=edge, found=found)
        )
        if edge is None:
            return (*found[TaskStatus.PENDING], *found[TaskStatus.RUNNING])
        await asyncio.sleep(0)


def _step(
    backend: Backend,
    state: ClusterState,
    *,
    wanted: Filter,
    matches: Callable[[Task, Shape], bool],
    edge: int | None,
    found: dict[TaskStatus, list[TaskId]],
) -> int | None:
    """Examines the next tasks, newest first. Returns where the next step begins, or None at the end."""
    ids = backend.views.some_ids(wanted.status, edge, AT_A_TIME, oldest=False)
    for task_id in ids:
        task = state.tasks.get(TaskId(task_id))
        if task is None or task.status.is_final or wanted.status not in {None, task.status}:
            continue
        shape = state.shapes[task.shape_id]
        if wanted.takes_key((shape.tenant_id, shape.pool, shape.priority)) and matches(task, shape):
            found[task.status].append(task.id)
    return ids[-1] if len(ids) == AT_A_TIME else None
