"""Submits a task again, as a new one."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
from litestar import Request, post
from msgspec.structs import replace

from dgpu.core.events import TasksSubmitted
from dgpu.core.model.ids import NO_TASK, TaskId, task_name
from dgpu.core.model.task import Task, TaskSpec, TaskStatus
from dgpu.core.state import ClusterState
from dgpu.journal.errors import JournalError
from dgpu.journal.segments import StoredGroups, chain
from dgpu.service.access.principal import Principal
from dgpu.service.rest import listing
from dgpu.service.rest.backend import Backend, ProblemError
from dgpu.service.rest.submit import key_of, submit_entries
from dgpu.service.rest.tasks import Given, TaskIdText, Who
from dgpu.service.secrets.details import sealed_under_newest
from dgpu.service.secrets.opened import CannotOpen
from dgpu.wire.answers import Problem, Retried, instant
from dgpu.wire.json_body import BadRequest, parse_json


@post(
    "/api/v1/tasks/{task_id:str}/retry",
    summary="Submit a task again",
    description="Copies an ended task: the same command, demands, limits and environment, without its "
    "dependencies. Of an array, only the task with this index. 409 while it waits or runs. Body: {}. "
    "Idempotency-Key makes a repeated call safe.",
    status_code=201,
)
async def retry_task(rest: Given, who: Who, task_id: TaskIdText, request: Request[Any, Any, Any]) -> Retried:
    number = listing.task_id_of(task_id)
    body = await request.body()
    if (parse_json(body) if body.strip() else {}) != {}:
        raise BadRequest("malformed_request", "The body must be {}.")
    given = request.headers.get("idempotency-key")
    key = key_of({} if given is None else {b"idempotency-key": given.encode("latin-1", "replace")})
    spec = _sealed(rest, _attributed(await _spec_again(rest, number), who))
    entries = ((1, spec),)
    first_id, _, created_at = await submit_entries(
        rest, who, entries, key, f"retry of {task_name(number)}".encode(), batch=False
    )
    return Retried(
        task_id=task_name(first_id),
        status="pending",
        created_at=instant(created_at),
        retry_of=task_name(number),
    )


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
            Problem(status=410, title="No longer readable", code="key_gone", detail=detail)
        ) from error


async def _spec_again(rest: Backend, task_id: TaskId) -> TaskSpec:
    def look(state: ClusterState) -> TaskSpec | TaskStatus | None:
        task = state.tasks.get(task_id)
        if task is None:
            return None
        return _spec_of(state, task) if task.status.is_final else task.status

    spec = await rest.runtime.read(look)
    if isinstance(spec, TaskStatus):
        raise ProblemError(_not_ended(task_id, spec))
    return await _from_journal(rest, task_id) if spec is None else spec


def _spec_of(state: ClusterState, task: Task) -> TaskSpec:
    return TaskSpec(
        shape=replace(state.shapes[task.shape_id], array_id=NO_TASK, array_limit=0),
        detail=task.detail,
        timeout_ms=task.timeout_ms,
        max_retries=task.max_retries,
        restart=task.restart,
        allocation=task.allocation,
        array=((task.array_index, task.array_index, 1),) if task.array_id else (),
    )


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
        raise ProblemError(Problem(status=410, title="No longer known", code="task_forgotten", detail=detail))
    array = ((row.array_index, row.array_index, 1),) if row.array_id else ()
    return replace(spec, array=array, array_limit=0, after=(), held=False)


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
    return Problem(status=409, title="Not ended yet", code="not_ended", detail=detail)


ROUTES: tuple[Any, ...] = (retry_task,)
