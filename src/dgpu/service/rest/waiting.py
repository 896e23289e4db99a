"""The calls on waiting tasks: hold, release, change of priority."""

from __future__ import annotations

from typing import Any

from litestar import Request, post

from dgpu.core.commands import ChangePriority, HoldTasks, ReleaseTasks
from dgpu.core.model.ids import TaskId
from dgpu.core.rejections import Rejection, TaskNotWaiting
from dgpu.service.access.principal import Principal
from dgpu.service.rest import arrays, listing
from dgpu.service.rest.backend import Backend, ProblemError
from dgpu.service.rest.tasks import ByElement, Given, TaskIdText, Who
from dgpu.wire.answers import TaskAnswer
from dgpu.wire.change_requests import decode_priority, decode_target
from dgpu.wire.problem import problem_of

_ARRAY_TOO = (
    "The id of the first task of an array means all waiting tasks of the array; task-42_3 means only one."
)


@post(
    "/api/v1/tasks/{task_id:str}/hold",
    summary="Hold a waiting task",
    description=f"It keeps its position in the queue and does not start before it is released. {_ARRAY_TOO}",
    status_code=200,
)
async def hold_task(
    rest: Given, who: Who, task_id: TaskIdText, element: ByElement, request: Request[Any, Any, Any]
) -> TaskAnswer:
    number = listing.task_id_of(task_id)
    whole = decode_target(await request.body())
    return await _change(rest, who, HoldTasks(**_target(rest, number, whole=whole, element=element)))


@post(
    "/api/v1/tasks/{task_id:str}/release",
    summary="Release a held task",
    description=f"A task that is not held stays unchanged. {_ARRAY_TOO}",
    status_code=200,
)
async def release_task(
    rest: Given, who: Who, task_id: TaskIdText, element: ByElement, request: Request[Any, Any, Any]
) -> TaskAnswer:
    number = listing.task_id_of(task_id)
    whole = decode_target(await request.body())
    return await _change(rest, who, ReleaseTasks(**_target(rest, number, whole=whole, element=element)))


@post(
    "/api/v1/tasks/{task_id:str}/priority",
    summary="Change the priority of a waiting task",
    description=f"0 to 100, or a level's name. The pool does not change. {_ARRAY_TOO}",
    status_code=200,
)
async def change_priority(
    rest: Given, who: Who, task_id: TaskIdText, element: ByElement, request: Request[Any, Any, Any]
) -> TaskAnswer:
    number = listing.task_id_of(task_id)
    priority, whole = decode_priority(await request.body())
    target = _target(rest, number, whole=whole, element=element)
    return await _change(rest, who, ChangePriority(**target, priority=priority))


def _target(rest: Backend, number: TaskId, *, whole: bool, element: bool) -> dict[str, Any]:
    """`whole`: the body says that an array is meant; then any other task is refused."""
    is_array = not element and (whole or arrays.is_array(rest, number))
    return {"array_id": number} if is_array else {"task_ids": (number,)}


async def _change(
    rest: Backend, who: Principal, command: HoldTasks | ReleaseTasks | ChangePriority
) -> TaskAnswer:
    result = await rest.execute(command)
    number = command.task_ids[0] if command.array_id is None else command.array_id
    # Also finds tasks that ended long ago.
    task = await arrays.shown(rest, who, number, element=command.array_id is None)
    if isinstance(result, Rejection):
        if command.task_ids and task.status not in {"pending", "running"}:
            result = TaskNotWaiting(task_id=number, status=task.status)
        raise ProblemError(problem_of(result))
    return task


ROUTES: tuple[Any, ...] = (hold_task, release_task, change_priority)
