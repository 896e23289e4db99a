"""The calls on waiting tasks: hold, release, change of priority."""

from __future__ import annotations

from typing import Any

from litestar import Request, post

from dgpu.core.commands import ChangePriority, HoldTasks, ReleaseTasks
from dgpu.core.model.ids import TaskId
from dgpu.core.rejections import Rejection, TaskNotWaiting
from dgpu.service.access.principal import Principal
from dgpu.service.rest import listing
from dgpu.service.rest.backend import Backend, ProblemError
from dgpu.service.rest.tasks import Given, TaskIdText, Who
from dgpu.wire.answers import TaskAnswer
from dgpu.wire.change_requests import decode_priority, decode_target
from dgpu.wire.problem import problem_of

_ARRAY_TOO = 'With {"array": true} all waiting tasks of the array that begins with this one.'


@post(
    "/api/v1/tasks/{task_id:str}/hold",
    summary="Hold a waiting task",
    description=f"It keeps its position in the queue and does not start before it is released. {_ARRAY_TOO}",
    status_code=200,
)
async def hold_task(
    rest: Given, who: Who, task_id: TaskIdText, request: Request[Any, Any, Any]
) -> TaskAnswer:
    number = listing.task_id_of(task_id)
    if decode_target(await request.body()):
        return await _change(rest, who, number, HoldTasks(array_id=number))
    return await _change(rest, who, number, HoldTasks(task_ids=(number,)))


@post(
    "/api/v1/tasks/{task_id:str}/release",
    summary="Release a held task",
    description=f"A task that is not held stays unchanged. {_ARRAY_TOO}",
    status_code=200,
)
async def release_task(
    rest: Given, who: Who, task_id: TaskIdText, request: Request[Any, Any, Any]
) -> TaskAnswer:
    number = listing.task_id_of(task_id)
    if decode_target(await request.body()):
        return await _change(rest, who, number, ReleaseTasks(array_id=number))
    return await _change(rest, who, number, ReleaseTasks(task_ids=(number,)))


@post(
    "/api/v1/tasks/{task_id:str}/priority",
    summary="Change the priority of a waiting task",
    description=f"0 to 100, or a level's name. The pool does not change. {_ARRAY_TOO}",
    status_code=200,
)
async def change_priority(
    rest: Given, who: Who, task_id: TaskIdText, request: Request[Any, Any, Any]
) -> TaskAnswer:
    number = listing.task_id_of(task_id)
    priority, whole_array = decode_priority(await request.body())
    if whole_array:
        return await _change(rest, who, number, ChangePriority(array_id=number, priority=priority))
    return await _change(rest, who, number, ChangePriority(task_ids=(number,), priority=priority))


async def _change(
    rest: Backend, who: Principal, number: TaskId, command: HoldTasks | ReleaseTasks | ChangePriority
) -> TaskAnswer:
    result = await rest.execute(command)
    task = await listing.find_task(rest, who, number)  # also finds tasks that ended long ago
    if isinstance(result, Rejection):
        if command.task_ids and task.status not in {"pending", "running"}:
            result = TaskNotWaiting(task_id=number, status=task.status)
        raise ProblemError(problem_of(result))
    return task


ROUTES: tuple[Any, ...] = (hold_task, release_task, change_priority)
