"""Submits a task or tasks of an array again, as new ones."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
from litestar import Request, post
from msgspec.structs import replace

from dgpu.core.events import TasksSubmitted
from dgpu.core.model.app import App
from dgpu.core.model.ids import TaskId, task_name
from dgpu.core.model.task import TaskSpec, TaskStatus
from dgpu.core.state import ClusterState
from dgpu.journal.errors import JournalError
from dgpu.journal.segments import StoredGroups, chain
from dgpu.service.access.principal import Principal
from dgpu.service.rest import arrays, listing
from dgpu.service.rest.backend import Backend, ProblemError
from dgpu.service.rest.started_earlier import spec_of
from dgpu.service.rest.submit import key_of, submit_entries
from dgpu.service.rest.tasks import ByElement, Given, TaskIdText, Who
from dgpu.service.secrets.details import sealed_under_newest
from dgpu.service.secrets.opened import CannotOpen
from dgpu.wire.answers import Problem, Retried, instant
from dgpu.wire.change_requests import decode_retry
from dgpu.wire.requests import entry_of


@post(
    "/api/v1/tasks/{task_id:str}/retry",
    summary="Submit a task or an array again",
    description="Copies an ended task: the same command, demands, limits and environment, without its "
    "dependencies. 409 while it waits or runs. The id of an array means all of its tasks; they become a new array "
    "with the same indexes. The id of one task of it, like task-42_3, means only this task. Body: {}, or "
    '{"failed": true} for only the failed tasks, even while others of the array still run. '
    "Idempotency-Key makes a repeated call safe.",
    status_code=201,
)
async def retry_task(
    rest: Given, who: Who, task_id: TaskIdText, element: ByElement, request: Request[Any, Any, Any]
) -> Retried:
    number = listing.task_id_of(task_id)
    failed = decode_retry(await request.body())
    given = request.headers.get("idempotency-key")
    key = key_of({} if given is None else {b"idempotency-key": given.encode("latin-1", "replace")})
    spec = await _specs_again(rest, number, element=element, failed=failed)
    apps = await _apps_of(rest, spec, number)
    entries = (entry_of(_sealed(rest, _attributed(spec, who))),)
    # A repeated call gets the first answer, although other tasks have failed meanwhile.
    what = f"retry of {task_name(number)}{' alone' if element else ''}{', failed' if failed else ''}"
    first_id, count, created_at = await submit_entries(
        rest, who, entries, key, what.encode(), batch=False, apps=apps
    )
    return Retried(
        task_id=task_name(first_id),
        status="pending",
        created_at=instant(created_at),
        retry_of=task_name(number),
        count=count,
    )


async def _apps_of(rest: Backend, spec: TaskSpec, number: TaskId) -> tuple[App, ...]:
    """Of a function call. An app without calls and workers is forgotten, and with it the code that the call needs."""
    app_id = spec.shape.app
    if not app_id:
        return ()
    app = await rest.runtime.read(lambda state: state.apps.get(app_id))
    if app is None:
        detail = f"The workers of {task_name(number)} have left, and their setup with them. Submit it again in full."
        facts = {"task_id": task_name(number)}
        raise ProblemError(
            Problem(status=410, title="No longer known", code="task_forgotten", detail=detail, facts=facts)
        )
    return (app,)


async def _specs_again(rest: Backend, number: TaskId, *, element: bool, failed: bool) -> TaskSpec:
    """One task, or an array of those that are meant."""
    members = None if element else await arrays.members_of(rest, number)
    if members is None:
        return await _one_again(rest, number, failed=failed)
    if not failed and (left := [each for each in members.tasks if not each.status.is_final]):
        raise ProblemError(_array_not_ended(number, len(left)))
    wanted = [each for each in members.tasks if not failed or each.status is TaskStatus.FAILED]
    if not wanted:
        raise ProblemError(_nothing_failed(f"No task of array {task_name(number)} has failed."))
    spec = await _spec_again(rest, wanted[0].task_id)
    task_ids = [each.task_id for each in wanted]
    memory_mb = await rest.runtime.read(lambda state: _most_memory_mb(state, task_ids))
    return replace(
        spec,
        shape=replace(spec.shape, gpu_memory_mb=max(memory_mb, spec.shape.gpu_memory_mb)),
        array=arrays.ranges_of(each.array_index for each in wanted),
        array_limit=spec.array_limit if spec.array_limit < len(wanted) else 0,
    )


async def _one_again(rest: Backend, task_id: TaskId, *, failed: bool) -> TaskSpec:
    spec = await _spec_again(rest, task_id)
    if failed and await _status_of(rest, task_id) is not TaskStatus.FAILED:
        raise ProblemError(_nothing_failed(f"{task_name(task_id)} has not failed."))
    return replace(spec, array_limit=0)


async def _status_of(rest: Backend, task_id: TaskId) -> TaskStatus | None:
    task = await rest.runtime.read(lambda state: state.tasks.get(task_id))
    found = await asyncio.to_thread(rest.history.task, task_id) if task is None else task
    return None if found is None else found.status


def _most_memory_mb(state: ClusterState, task_ids: list[TaskId]) -> int:
    """A task that ran out of memory got a larger demand. All tasks of the new array get the largest one."""
    tasks = (state.tasks.get(task_id) for task_id in task_ids)
    return max((state.shapes[task.shape_id].gpu_memory_mb for task in tasks if task is not None), default=0)


def _attributed(spec: TaskSpec, who: Principal) -> TaskSpec:
    """The new task is of the user who submits it, as with any submit."""
    if not who.token_id:
        return spec
    detail = msgspec.json.decode(spec.detail)
    detail["labels"] = {**detail.get("labels", {}), "user": who.user}
    return replace(spec, detail=msgspec.json.encode(detail))


def _sealed(rest: Backend, spec: TaskSpec) -> TaskSpec:
    """Under the newest key. A record of an older version may hold the values in clear; they are not stored so again."""
    if rest.vault is None:
        return spec
    try:
        return replace(spec, detail=sealed_under_newest(rest.vault, spec.shape.tenant_id, spec.detail))
    except CannotOpen as error:
        detail = f"{error}."[0].upper() + f"{error}."[1:]
        raise ProblemError(
            Problem(
                status=410,
                title="No longer readable",
                code="key_gone",
                detail=detail,
                facts={"why": str(error)},
            )
        ) from error


async def _spec_again(rest: Backend, task_id: TaskId) -> TaskSpec:
    def look(state: ClusterState) -> TaskSpec | TaskStatus | None:
        task = state.tasks.get(task_id)
        if task is None:
            return None
        return spec_of(state, task) if task.status.is_final else task.status

    spec = await rest.runtime.read(look)
    if isinstance(spec, TaskStatus):
        raise ProblemError(_not_ended(task_id, spec))
    return await _from_journal(rest, task_id) if spec is None else spec


async def _from_journal(rest: Backend, task_id: TaskId) -> TaskSpec:
    """The history has no environment. The journal record of the submit has it, as long as the record is kept."""
    row = await asyncio.to_thread(rest.history.task, task_id)
    if row is None:
        raise listing.unknown_task(task_id)
    if not row.status.is_final:
        raise ProblemError(_not_ended(task_id, row.status))
    events = await asyncio.to_thread(rest.history.task_events, task_id, limit=1)
    spec = None
    if rest.options.journal_dir is not None and events:
        spec = await asyncio.to_thread(_read_spec, rest.options.journal_dir, events[0].index, task_id)
    if spec is None:
        detail = f"The record with the environment of {task_name(task_id)} is no longer kept. Submit it again in full."
        facts = {"task_id": task_name(task_id)}
        raise ProblemError(
            Problem(status=410, title="No longer known", code="task_forgotten", detail=detail, facts=facts)
        )
    array = ((row.array_index, row.array_index, 1),) if row.array_id else ()
    return replace(spec, array=array, after=(), held=False, begins_ms=0)


def _read_spec(journal_dir: Path, index: int, task_id: TaskId) -> TaskSpec | None:
    try:
        wanted = chain(journal_dir, index - 1)
        first = replace(wanted, segments=wanted.segments[:1])
        group = next(iter(StoredGroups(first)), None)
    except (OSError, JournalError):
        return None
    for event in group.events if group is not None and group.index == index else ():
        if isinstance(event, TasksSubmitted):
            place = task_id - event.first_id
            for number, spec in event.entries:
                if 0 <= place < number:
                    return spec
                place -= number
    return None


def _not_ended(task_id: TaskId, status: TaskStatus) -> Problem:
    detail = f"{task_name(task_id)} is {status.value}; only an ended task can be submitted again."
    facts = {"task_id": task_name(task_id), "status": status.value}
    return Problem(status=409, title="Not ended yet", code="not_ended", detail=detail, facts=facts)


def _array_not_ended(array_id: TaskId, left: int) -> Problem:
    detail = (
        f"{left:,} tasks of array {task_name(array_id)} wait or run; only an ended array can be submitted again. "
        'Failed tasks can be submitted again now: {"failed": true}, or dgpu retry --failed.'
    )
    facts = {"array_id": task_name(array_id), "left": left}
    return Problem(status=409, title="Not ended yet", code="not_ended", detail=detail, facts=facts)


def _nothing_failed(detail: str) -> Problem:
    return Problem(status=409, title="Nothing has failed", code="nothing_failed", detail=detail)


ROUTES: tuple[Any, ...] = (retry_task,)
