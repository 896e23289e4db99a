"""The calls on tasks that are not hot."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from litestar import Request, delete, get, post
from litestar.di import NamedDependency
from litestar.params import PathParameter, QueryParameter, SkipValidation

from dgpu.core.commands import CancelTasks
from dgpu.core.events import TaskCancelRequested, TaskFinished, TasksCancelled
from dgpu.core.model.ids import TaskId, TenantId, task_name
from dgpu.core.model.task import TaskStatus
from dgpu.core.rejections import Rejection, TaskEnded, UnknownTask
from dgpu.service.access.anonymous import events_told_to, task_told_to
from dgpu.service.access.principal import Principal
from dgpu.service.access.table import Action, may
from dgpu.service.history.reader import HistoryDamaged
from dgpu.service.rest import arrays, listing, task_list
from dgpu.service.rest.attempts import attempts_of
from dgpu.service.rest.backend import Backend, ProblemError
from dgpu.service.rest.live_search import live_ids
from dgpu.service.rest.open_streams import OpenStream
from dgpu.service.rest.ownership import refuse_foreign_array, refuse_foreign_task
from dgpu.service.rest.started_earlier import with_earlier_start
from dgpu.service.views.events import events_of_task, past_task_event
from dgpu.service.views.task_usage import with_usage
from dgpu.wire.answers import Cancelled, TaskAnswer, TaskEvents, TaskPage, instant
from dgpu.wire.change_requests import decode_cancel
from dgpu.wire.problem import problem_of
from dgpu.wire.requests import MAX_BATCH_TASKS
from dgpu.wire.task_names import Element

Given = NamedDependency[SkipValidation[Backend]]
Who = NamedDependency[SkipValidation[Principal]]
Opener = NamedDependency[SkipValidation[Callable[[], OpenStream]]]  # counts the answer as a stream
ByElement = NamedDependency[SkipValidation[bool]]  # the path named one task of an array, like task-42_3
TaskIdText = Annotated[
    str,
    PathParameter(
        description="task-42, or 42. The task of array 42 with index 3: task-42_3. The id of the first task of an "
        "array means the array in calls that change something."
    ),
]

StatusQuery = Annotated[
    str | None,
    QueryParameter(
        description="pending, running, success, failed or cancelled; several: failed,cancelled.",
        required=False,
    ),
]
PriorityQuery = Annotated[
    str | None, QueryParameter(description="0 to 100, or a level's name.", required=False)
]
TenantQuery = Annotated[str | None, QueryParameter(description="Whose tasks.", required=False)]
PoolQuery = Annotated[str | None, QueryParameter(description="online or batch.", required=False)]
WordsQuery = Annotated[
    str | None,
    QueryParameter(
        description="Words in the id, name, tenant or command, 1 to 100 characters.", required=False
    ),
]
NameQuery = Annotated[
    str | None,
    QueryParameter(description="The whole name; * and ? stand for any characters.", required=False),
]
UserQuery = Annotated[
    str | None, QueryParameter(description="The user who submitted: the label `user`.", required=False)
]
LabelQuery = Annotated[
    str | None, QueryParameter(description="team=nlp, or several: team=nlp,run=7.", required=False)
]
ArrayQuery = Annotated[
    str | None,
    QueryParameter(description="The tasks of this array: the id of its first task.", required=False),
]
FoldQuery = Annotated[
    str | None,
    QueryParameter(
        description="true: an array is one row, its newest task that matches, with the progress of the array in "
        "`array`.",
        required=False,
    ),
]
NodeQuery = Annotated[
    str | None, QueryParameter(description="Tasks that run or last ran there.", required=False)
]
GpuQuery = Annotated[
    str | None, QueryParameter(description="A GPU's UUID: tasks that run or last ran on it.", required=False)
]
SortQuery = Annotated[str | None, QueryParameter(description="newest (if absent) or oldest.", required=False)]
LimitQuery = Annotated[str | None, QueryParameter(description="1 to 1000; 100 if absent.", required=False)]
CursorQuery = Annotated[
    str | None, QueryParameter(description="next_cursor of the page before this one.", required=False)
]


@get(
    "/api/v1/tasks",
    summary="List tasks",
    description="Newest first. `total` counts all tasks that match status, priority, tenant and pool. With several "
    "states, q, name, user, label, node, gpu, array or sort it counts this page's (`total_is_exact` is then true only "
    "if that is all). Such a page may have fewer tasks than requested, even none, although next_cursor continues: the "
    "number of examined tasks per page is limited.",
)
async def list_tasks(
    rest: Given,
    who: Who,
    status: StatusQuery = None,
    priority: PriorityQuery = None,
    tenant: TenantQuery = None,
    pool: PoolQuery = None,
    q: WordsQuery = None,
    name: NameQuery = None,
    user: UserQuery = None,
    label: LabelQuery = None,
    node: NodeQuery = None,
    gpu: GpuQuery = None,
    array: ArrayQuery = None,
    sort: SortQuery = None,
    fold: FoldQuery = None,
    limit: LimitQuery = None,
    cursor: CursorQuery = None,
) -> TaskPage:
    return await task_list.task_page(
        rest,
        who,
        status=status,
        priority=priority,
        tenant=tenant,
        pool=pool,
        q=q,
        name=name,
        user=user,
        label=label,
        node=node,
        gpu=gpu,
        array=array,
        sort=sort,
        fold=fold,
        limit=limit,
        cursor=cursor,
    )


@get(
    "/api/v1/tasks/{task_id:str}",
    summary="Show a task",
    description="Includes tasks that ended long ago. With its attempts. The first task of an array comes with the "
    "progress of the array. `usage` of a running task is what its nodes measured until now.",
)
async def get_task(rest: Given, who: Who, task_id: TaskIdText, element: ByElement) -> TaskAnswer:
    number = listing.task_id_of(task_id)
    task = await arrays.shown(rest, who, number, element=element)
    if not task.attempt:
        return task
    attempts = await attempts_of(rest, number)
    now = instant(rest.runtime.now_ms())
    told = with_usage(msgspec.structs.replace(task, attempts=attempts), now)
    return task_told_to(who.tenants, await with_earlier_start(rest, number, told))


@get(
    "/api/tasks/{task_id:str}",
    summary="Show a task (workstation form)",
    description="The same as /api/v1/tasks/{task_id}.",
)
async def get_task_of_workstation(rest: Given, who: Who, task_id: TaskIdText) -> TaskAnswer:
    return await listing.find_task(rest, who, listing.task_id_of(task_id))


@delete(
    "/api/v1/tasks/{task_id:str}",
    summary="Cancel a task or an array",
    description="Waiting or running. An ended task is refused with 409; a cancelled one is not.",
    status_code=200,
)
async def cancel_task(rest: Given, who: Who, task_id: TaskIdText, element: ByElement) -> TaskAnswer:
    number = listing.task_id_of(task_id)
    if not element and arrays.is_array(rest, number):
        return await _cancel_array(rest, who, number)
    result = await rest.execute(CancelTasks(task_ids=(number,)))
    if isinstance(result, UnknownTask):
        past = await listing.find_task(rest, who, number)
        result = TaskEnded(task_id=number, status=past.status)
    # A repeated call after a lost answer: the task is already as requested.
    if isinstance(result, Rejection) and not _is_cancelled(result):
        raise ProblemError(problem_of(result))
    return await listing.find_task(rest, who, number)


async def _cancel_array(rest: Backend, who: Principal, array_id: TaskId) -> TaskAnswer:
    result = await rest.execute(CancelTasks(array_id=array_id))
    if isinstance(result, Rejection):
        raise ProblemError(problem_of(result))
    task = await arrays.shown(rest, who, array_id, element=False)
    array = task.array
    if array is not None and array.is_over and not array.cancelled and not _number_cancelled(result):
        status = TaskStatus.FAILED if array.failed else TaskStatus.SUCCESS
        raise ProblemError(problem_of(TaskEnded(task_id=array_id, status=status.value)))
    return task


def _is_cancelled(rejection: Rejection) -> bool:
    return isinstance(rejection, TaskEnded) and rejection.status == TaskStatus.CANCELLED


@post(
    "/api/v1/tasks/cancel",
    summary="Cancel many tasks",
    description="By ids, or by the filters of the list. The id of the first task of an array means the array, "
    "task-42_3 its task with index 3. Ended tasks stay as they are.",
    status_code=200,
)
async def cancel_tasks(rest: Given, who: Who, request: Request[Any, Any, Any]) -> Cancelled:
    named, command, terms = decode_cancel(await request.body())
    if named:
        for each in named if who.tenants is not None else ():
            if not isinstance(each, Element):
                await refuse_foreign_task(rest, who, Action.CHANGE_TASK, each)
        task_ids = await arrays.resolve_names(rest, who, Action.CHANGE_TASK, named)
        return await _cancel(rest, CancelTasks(task_ids=task_ids)) if task_ids else Cancelled(cancelled=0)
    if command.array_id is not None and who.tenants is not None:
        await refuse_foreign_array(rest, who, command.array_id)
    if terms:
        return await _cancel_found(rest, who, command, terms)
    if who.tenants is None:
        return await _cancel(rest, command)
    wanted = who.tenants if command.tenant_id is None else (command.tenant_id,)
    own = [TenantId(each) for each in wanted if may(who, Action.CHANGE_TASK, each)]
    counts = [await _cancel(rest, msgspec.structs.replace(command, tenant_id=each)) for each in own]
    return Cancelled(cancelled=sum(each.cancelled for each in counts))


async def _cancel_found(
    rest: Backend, who: Principal, command: CancelTasks, terms: dict[str, str]
) -> Cancelled:
    """Some filters are not known to the core: the tasks that match now are cancelled by their ids."""
    own = who.tenants and tuple(each for each in who.tenants if may(who, Action.CHANGE_TASK, TenantId(each)))
    found = await live_ids(rest, command, terms, own)
    parts = [found[start : start + MAX_BATCH_TASKS] for start in range(0, len(found), MAX_BATCH_TASKS)]
    counts = [await _cancel(rest, CancelTasks(task_ids=part)) for part in parts]
    return Cancelled(cancelled=sum(each.cancelled for each in counts))


async def _cancel(rest: Backend, command: CancelTasks) -> Cancelled:
    result = await rest.execute(command)
    if isinstance(result, TaskEnded):
        return Cancelled(cancelled=0)
    if isinstance(result, UnknownTask) and command.task_ids is not None:
        return await _cancel_known(rest, command.task_ids)
    if isinstance(result, Rejection):
        raise ProblemError(problem_of(result))
    return Cancelled(cancelled=_number_cancelled(result))


async def _cancel_known(rest: Backend, task_ids: tuple[TaskId, ...]) -> Cancelled:
    """Some tasks left the memory. Tasks in the history have ended; an unknown task is an error."""
    live = await rest.runtime.read(lambda state: [task_id for task_id in task_ids if task_id in state.tasks])
    gone = set(task_ids).difference(live)
    for task_id in sorted(gone):
        if await asyncio.to_thread(rest.history.task, task_id) is None:
            raise listing.unknown_task(task_id)
    if not live:
        return Cancelled(cancelled=0)
    result = await rest.execute(CancelTasks(task_ids=tuple(live)))
    if isinstance(result, TaskEnded):
        return Cancelled(cancelled=0)
    if isinstance(result, Rejection):
        raise ProblemError(problem_of(result))
    return Cancelled(cancelled=_number_cancelled(result))


def _number_cancelled(events: tuple[Any, ...]) -> int:
    number = 0
    for event in events:
        if isinstance(event, TasksCancelled):
            number += len(event.task_ids)
        elif isinstance(event, TaskCancelRequested | TaskFinished):
            number += 1
    return number


@get("/api/v1/tasks/{task_id:str}/events", summary="Events of a task", description="In order.")
async def task_events(rest: Given, who: Who, task_id: TaskIdText) -> TaskEvents:
    number = listing.task_id_of(task_id)
    # The latest first: events that the history adds meanwhile are then seen twice, but never missed.
    is_live = await rest.runtime.read(lambda state: number in state.tasks)
    lately = events_of_task(list(rest.views.recent), number)
    try:
        rows = await asyncio.to_thread(rest.history.task_events, number)
    except HistoryDamaged:
        if not is_live:
            raise
        rows = []  # recent events are known without the history
    past = [past_task_event(event, number) for event in rows]
    if not past and not lately and not is_live:
        raise listing.unknown_task(number)
    seen = max((event.index for event in past), default=0)
    events = past + [event for event in lately if event.index > seen]
    return TaskEvents(task_id=task_name(number), events=events_told_to(who.tenants, events))


ROUTES: tuple[Any, ...] = (
    list_tasks,
    get_task,
    get_task_of_workstation,
    cancel_task,
    cancel_tasks,
    task_events,
)
