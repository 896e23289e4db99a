"""Results of function calls, and the workers that run them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Annotated, Any, NamedTuple

from litestar import Request, Response, get, post
from litestar.params import QueryParameter
from litestar.response import Stream

from dgpu.core.model.ids import TaskId, TenantId, parse_task_id, task_name
from dgpu.core.model.task import TaskStatus
from dgpu.core.rejections import UnknownTask
from dgpu.core.state import ClusterState
from dgpu.service.access.principal import Principal
from dgpu.service.access.table import Action, may
from dgpu.service.rest import listing
from dgpu.service.rest.backend import Backend, ProblemError
from dgpu.service.rest.tasks import Given, TaskIdText, TenantQuery, Who
from dgpu.service.results.file import StoredResult
from dgpu.service.results.values import shown
from dgpu.service.views.workers import worker_rows
from dgpu.wire.answers import FieldError, Problem
from dgpu.wire.call_answers import CallResult, CallResults, WorkerList
from dgpu.wire.json_body import parse_json
from dgpu.wire.problem import problem_of
from dgpu.wire.requests import invalid
from dgpu.wire.uploads import PIECE_BYTES

MAX_IDS = 1_000
MAX_WAIT_S = 60.0
_READ_AGAIN_S = 0.1
MSGPACK = "application/msgpack"

WaitQuery = Annotated[
    str | None,
    QueryParameter(description="Seconds to wait for the end, 0 to 60; 0 if absent.", required=False),
]


class EndedCall(NamedTuple):
    """A call, as far as its task shows it."""

    task_id: TaskId
    tenant_id: TenantId
    status: TaskStatus
    reason: str
    error: str
    ended_at: int
    is_call: bool


@get(
    "/api/v1/tasks/{task_id:str}/result",
    summary="The result of a function call",
    description="202 while the call waits or runs, with its status; `wait` holds the answer back until its end. 200 "
    "when it has ended: `result` is the returned value as JSON, or base64 of its msgpack if JSON cannot hold it "
    "(`encoding`). A call that raised has `error` and `traceback`. A result of more than 256 KiB has `ref` and `size` "
    "and is read with /result/content. 410 `result_expired` when the result is no longer kept "
    "(worker.result_ttl_seconds). With `Accept: application/msgpack` the body is the result itself.",
)
async def get_result(
    rest: Given, who: Who, task_id: TaskIdText, request: Request[Any, Any, Any], wait: WaitQuery = None
) -> Response[Any]:
    number = listing.task_id_of(task_id)
    seconds = _seconds(wait)
    (call,) = await _calls(rest, who, [number])
    if not call.status.is_final and seconds:
        await _wait_for_one(rest, [number], seconds)
        (call,) = await _calls(rest, who, [number])
    if not call.status.is_final:
        return Response(CallResult(task_id=task_name(number), status=call.status.value), status_code=202)
    found = (await _stored(rest, [call], seconds)).get(number)
    if found is None and call.status is TaskStatus.SUCCESS:
        raise ProblemError(_gone(rest, call))
    if found is not None and request.headers.get("accept") == MSGPACK and found.result:
        return Response(found.result, media_type=MSGPACK)
    return Response(_answer(call, found))


@post(
    "/api/v1/tasks/results",
    summary="Results of several function calls",
    description='Body: {"task_ids": [...], "wait": 10}. Answers as soon as at least one of the calls has ended, with '
    "the results of all that have; `pending` counts the others. At most 1,000 ids. A result that is no longer kept has "
    "the reason `result_expired`.",
    status_code=200,
)
async def get_results(rest: Given, who: Who, request: Request[Any, Any, Any]) -> CallResults:
    task_ids, seconds = _asked(await request.body())
    calls = await _calls(rest, who, task_ids)
    if seconds and not any(call.status.is_final for call in calls):
        await _wait_for_one(rest, task_ids, seconds)
        calls = await _calls(rest, who, task_ids)
    return await results_of(rest, calls, seconds)


async def results_of(rest: Backend, calls: list[EndedCall], seconds: float) -> CallResults:
    """Of those that have ended. A result that the scheduler has yet to read counts as pending."""
    ended = [call for call in calls if call.status.is_final]
    found = await _stored(rest, ended, seconds)
    results = [
        _answer(call, found.get(call.task_id))
        for call in ended
        if call.task_id in found or not _is_unread(rest, call)
    ]
    return CallResults(results=results, pending=len(calls) - len(results))


@get(
    "/api/v1/tasks/{task_id:str}/result/content",
    summary="A large result",
    description="The msgpack of the returned value, of any size. 409 `not_ended` while the call waits or runs.",
    media_type=MSGPACK,
)
async def get_result_content(rest: Given, who: Who, task_id: TaskIdText) -> Response[Any] | Stream:
    number = listing.task_id_of(task_id)
    (call,) = await _calls(rest, who, [number])
    if not call.status.is_final:
        detail = f"{task_name(number)} is {call.status.value}; its result comes with its end."
        raise ProblemError(Problem(status=409, code="not_ended", title="Not ended yet", detail=detail))
    found = (await _stored(rest, [call], 0.0)).get(number)
    if found is None:
        raise ProblemError(_gone(rest, call))
    if not found.ref:
        return Response(found.result, media_type=MSGPACK)
    store = rest.files.content
    descriptor = None if store is None else await asyncio.to_thread(store.open, call.tenant_id, found.ref)
    if descriptor is None:
        raise ProblemError(_gone(rest, call))
    return Stream(_Pieces(descriptor), media_type=MSGPACK, headers={"content-length": str(found.size)})


@get(
    "/api/v1/workers",
    summary="Workers of function calls",
    description="Processes that keep a GPU and their loaded models between calls: where they run, their models, and "
    "since when they are idle.",
)
async def list_workers(rest: Given, who: Who, tenant: TenantQuery = None) -> WorkerList:
    rows = await rest.runtime.read(worker_rows)
    return WorkerList(
        workers=[
            row
            for row in rows
            if may(who, Action.READ_TASK, TenantId(row.tenant_id)) and tenant in {None, row.tenant_id}
        ]
    )


class _Pieces:
    """Of a file. An iterator and no generator: it closes the file also if the stream never starts."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        if self._descriptor < 0:
            raise StopAsyncIteration
        piece = await asyncio.to_thread(os.read, self._descriptor, PIECE_BYTES)
        if not piece:
            self.close()
            raise StopAsyncIteration
        return piece

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __del__(self) -> None:
        self.close()


async def _calls(rest: Backend, who: Principal, task_ids: list[TaskId]) -> list[EndedCall]:
    """Raises for the first id that is unknown, of another tenant, or no function call."""

    def look(state: ClusterState) -> list[EndedCall | None]:
        return [_look_up(state, task_id) for task_id in task_ids]

    found = await rest.runtime.read(look)
    missing = [task_id for task_id, each in zip(task_ids, found, strict=True) if each is None]
    past = await asyncio.to_thread(_from_history, rest, missing) if missing else {}
    calls: list[EndedCall] = []
    for task_id, each in zip(task_ids, found, strict=True):
        call = past.get(task_id) if each is None else each
        if call is None or not may(who, Action.READ_OUTPUT, call.tenant_id):
            raise ProblemError(problem_of(UnknownTask(task_id=task_id)))
        if not call.is_call:
            detail = (
                f"{task_name(task_id)} runs a command and has no result; read its output: dgpu logs {task_id}"
            )
            raise ProblemError(Problem(status=409, code="no_result", title="No function call", detail=detail))
        calls.append(call)
    return calls


def _look_up(state: ClusterState, task_id: TaskId) -> EndedCall | None:
    task = state.tasks.get(task_id)
    if task is None:
        return None
    shape = state.shapes[task.shape_id]
    return EndedCall(
        task_id, shape.tenant_id, task.status, task.reason, task.error, task.ended_at, is_call=bool(shape.app)
    )


def _from_history(rest: Backend, task_ids: list[TaskId]) -> dict[TaskId, EndedCall]:
    found: dict[TaskId, EndedCall] = {}
    for task_id in task_ids:
        row = rest.history.task(task_id)
        if row is not None:
            found[task_id] = EndedCall(
                task_id,
                row.tenant_id,
                row.status,
                row.reason,
                row.error,
                row.finished_at,
                is_call=bool(row.entrypoint),
            )
    return found


async def _wait_for_one(rest: Backend, task_ids: list[TaskId], seconds: float) -> None:
    """A call that ended between the read and now is not missed: the state is asked again first."""

    def has_ended(state: ClusterState) -> bool:
        return any(task_id not in state.tasks or state.tasks[task_id].status.is_final for task_id in task_ids)

    waiting = asyncio.ensure_future(rest.results.recent.wait(task_ids, seconds))
    try:
        if not await rest.runtime.read(has_ended):
            await waiting
    finally:
        waiting.cancel()


async def _stored(rest: Backend, calls: list[EndedCall], seconds: float) -> dict[TaskId, StoredResult]:
    """Waits up to so long while none of them was read since the start of the scheduler."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    while True:
        found = await rest.results.find([call.task_id for call in calls])
        is_unread = bool(calls) and all(
            call.task_id not in found and _is_unread(rest, call) for call in calls
        )
        if not is_unread or loop.time() >= until:
            return found
        await asyncio.sleep(_READ_AGAIN_S)


def _is_unread(rest: Backend, call: EndedCall) -> bool:
    """Whether a result that was not found may come: after a start, the follower reads the journal to its end."""
    is_behind = rest.follower is not None and rest.follower.seen_at < call.ended_at
    return is_behind and call.status is TaskStatus.SUCCESS


def _answer(call: EndedCall, found: StoredResult | None) -> CallResult:
    value, encoding = (None, "json") if found is None else shown(found.result, found.encoding)
    expired = found is None and call.status is TaskStatus.SUCCESS
    return CallResult(
        task_id=task_name(call.task_id),
        status=call.status.value,
        result=value,
        encoding="msgpack" if encoding == "msgpack" else "json",
        error=call.error,
        reason="result_expired" if expired else call.reason,
        traceback="" if found is None else found.traceback,
        ref="" if found is None else found.ref,
        size=0 if found is None else found.size,
    )


def _gone(rest: Backend, call: EndedCall) -> Problem:
    name = task_name(call.task_id)
    if _is_unread(rest, call):
        detail = f"The scheduler has just started and still reads the result of {name}. Try again soon."
        return Problem(status=503, code="results_behind", title="Not read yet", detail=detail)
    detail = f"{name} ended with {call.status.value}; its result is no longer kept."
    facts = {"task_id": name}
    return Problem(status=410, code="result_expired", title="No longer kept", detail=detail, facts=facts)


def _seconds(text: str | None) -> float:
    if text is None:
        return 0.0
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= MAX_WAIT_S:
        detail = f"Expected a number of seconds from 0 to {MAX_WAIT_S:g}, got {text[:40]!r}."
        raise invalid([FieldError(path="wait", detail=detail)])
    return seconds


def _asked(body: bytes) -> tuple[list[TaskId], float]:
    raw = parse_json(body)
    if type(raw) is not dict or not raw.keys() <= {"task_ids", "wait"}:
        raise invalid([FieldError(path="", detail='Expected {"task_ids": [...], "wait": SECONDS}.')])
    names = raw.get("task_ids")
    if type(names) is not list or not 0 < len(names) <= MAX_IDS:
        raise invalid(
            [FieldError(path="task_ids", detail=f"Expected a list of 1 to {MAX_IDS:,} ids of tasks.")]
        )
    task_ids: list[TaskId] = []
    for place, name in enumerate(names):
        task_id = parse_task_id(name) if type(name) is str else None
        if task_id is None:
            raise invalid(
                [FieldError(path=f"task_ids[{place}]", detail="Expected the id of a task, like task-42.")]
            )
        task_ids.append(task_id)
    return list(dict.fromkeys(task_ids)), _seconds(str(raw.get("wait") or 0))


ROUTES: tuple[Any, ...] = (get_result, get_results, get_result_content, list_workers)
