"""Pages of tasks: live tasks from memory and forgotten tasks from the history, merged by id, newest first.

The memory is read first. Tasks forgotten by then are already in the history, marked or (for a moment) not yet marked;
the views know the latter. A task that is forgotten in between comes from both and is shown once, with its data from
memory.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import AsyncIterator, Callable, Container, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from msgspec.structs import replace

from dgpu.core.foresight.explain import explain
from dgpu.core.model.dependencies import Awaited
from dgpu.core.model.ids import NodeId, TaskId, TenantId, parse_task_id
from dgpu.core.model.task import Pool, Shape, Task, TaskStatus
from dgpu.core.rejections import Rejection, UnknownTask
from dgpu.core.state import ClusterState
from dgpu.service.access.anonymous import task_told_to, told_to
from dgpu.service.access.principal import Principal, Tenants
from dgpu.service.history.filters import TaskFilters
from dgpu.service.history.reader import PastTask
from dgpu.service.rest.backend import Backend, ProblemError
from dgpu.service.rest.reasons import Reason, Reasons, unreachable
from dgpu.service.views.tasks import (
    GpuNames,
    gpu_names,
    past_task_answer,
    reservation_answer,
    task_answer,
)
from dgpu.service.views.views import Filter, Forgotten
from dgpu.service.views.workers import CallFacts, call_facts
from dgpu.wire import fields
from dgpu.wire.answers import FieldError, Problem, TaskAnswer, TaskPage
from dgpu.wire.fields import Check, Unacceptable
from dgpu.wire.json_body import BadRequest, shorten
from dgpu.wire.problem import problem_of
from dgpu.wire.run_dirs import run_dir_name
from dgpu.wire.task_names import Element, Named, parse_named

MAX_PER_PAGE = 1_000
_SLICE = 50  # tasks of a page at a time

T = TypeVar("T")
U = TypeVar("U")


class _Row(NamedTuple):
    """A task at a committed point. The values do not change, so the answer can be built later."""

    task: Task
    shape: Shape
    awaited: Awaited | None
    reason: Reason
    names: GpuNames
    call: CallFacts | None = None


class _Live(NamedTuple):
    rows: list[_Row]
    total: int


async def list_page(backend: Backend, wanted: Filter, before: int | None, limit: int) -> TaskPage:
    views = backend.views
    live = await backend.runtime.read(lambda state: _live_part(backend, state, wanted, before, limit + 1))
    merged = dict([pair async for pair in _in_slices(live.rows, _answer_of)])
    total = live.total
    may_be_past = wanted.status is None or wanted.status.is_final
    if may_be_past and views.highest_forgotten:
        # A full page of newer tasks is in memory: older ones cannot be on it, so only their number is needed.
        above = live.rows[-1].task.id if len(live.rows) > limit else 0
        past, past_total = await _past_part(backend, wanted, before, limit + 1, above)
        total += past_total
        for task_id, answer in past:
            merged.setdefault(task_id, answer)
    ids = sorted(merged, reverse=True)
    more = len(ids) > limit
    return TaskPage(
        tasks=[task_told_to(wanted.tenants, merged[task_id]) for task_id in ids[:limit]],
        total=total,
        next_cursor=encode_cursor(ids[limit - 1]) if more else None,
    )


def _live_part(
    backend: Backend, state: ClusterState, wanted: Filter, before: int | None, limit: int
) -> _Live:
    rows = _rows(backend, state, backend.views.newest(wanted, before, limit), wanted.tenants)
    return _Live(rows, backend.views.live_total(wanted))


def answers_of(
    backend: Backend, state: ClusterState, tasks: Iterable[Task], tenants: Tenants
) -> list[tuple[TaskId, TaskAnswer]]:
    return list(map(_answer_of, _rows(backend, state, tasks, tenants)))


def _rows(backend: Backend, state: ClusterState, tasks: Iterable[Task], tenants: Tenants) -> list[_Row]:
    reasons = Reasons(state, max(state.last_at, backend.runtime.now_ms()), tenants)
    return [
        _Row(
            task,
            state.shapes[task.shape_id],
            state.after.get(task.id),
            reasons.of(task),
            gpu_names(state, task.gpu_ids),
            call_facts(state, task, backend.views.progress_of),
        )
        for task in tasks
    ]


def _answer_of(row: _Row) -> tuple[TaskId, TaskAnswer]:
    answer = task_answer(row.task, row.shape, row.names, awaited=row.awaited, waits=row.reason, call=row.call)
    return row.task.id, answer


async def _in_slices(rows: Iterable[T], make: Callable[[T], U]) -> AsyncIterator[U]:
    """A page of 1,000 takes 20 ms and more; between the slices the loop serves other requests."""
    for number, row in enumerate(rows, 1):
        yield make(row)
        if not number % _SLICE:
            await asyncio.sleep(0)


async def _past_part(
    backend: Backend, wanted: Filter, before: int | None, limit: int, above: int
) -> tuple[list[tuple[TaskId, TaskAnswer]], int]:
    views, history = backend.views, backend.history
    filters = filters_of(wanted)
    page = await asyncio.to_thread(
        history.forgotten_page, filters, before_id=before, above_id=above, limit=limit
    )
    if page.index < views.first_index:
        # The follower still reads groups from before this start: use its rows although they are unmarked.
        page = await asyncio.to_thread(
            history.forgotten_page, filters, before_id=before, above_id=above, limit=limit, live=True
        )
    rows = {row.id: row for row in page.tasks}
    unmarked = views.forgotten_after(page.index, wanted)
    missing = [
        gone
        for gone in unmarked
        if gone.task_id not in rows and above < gone.task_id and (before is None or gone.task_id < before)
    ]
    missing.sort(key=lambda gone: -gone.task_id)
    if missing:
        rows.update(await asyncio.to_thread(_rows_of, backend, missing[:limit]))
    names = await names_of(backend, rows.values())
    made = _in_slices(rows.values(), lambda row: (row.id, past_task_answer(row, names)))
    return [pair async for pair in made], page.total + len(unmarked)


async def names_of(backend: Backend, rows: Iterable[PastTask]) -> GpuNames:
    """The GPUs of past tasks that the cluster still has."""
    gpu_ids = {gpu_id for row in rows for gpu_id in row.gpu_ids}
    return await backend.runtime.read(lambda state: gpu_names(state, gpu_ids)) if gpu_ids else {}


async def total_of(backend: Backend, wanted: Filter) -> int:
    """All tasks that match, in memory and in the history."""
    views, total = backend.views, backend.views.live_total(wanted)
    if not views.highest_forgotten or not (wanted.status is None or wanted.status.is_final):
        return total
    page = await asyncio.to_thread(
        backend.history.forgotten_page, filters_of(wanted), before_id=None, limit=0
    )
    return total + page.total + len(views.forgotten_after(page.index, wanted))


def filters_of(wanted: Filter) -> TaskFilters:
    return TaskFilters(
        status=wanted.status,
        priority=wanted.priority,
        tenant_id=TenantId(wanted.tenant) if wanted.tenant is not None else None,
        pool=Pool(wanted.pool) if wanted.pool is not None else None,
        tenants=wanted.tenants,
    )


def _rows_of(backend: Backend, missing: list[Forgotten]) -> dict[TaskId, PastTask]:
    found = (backend.history.task(gone.task_id) for gone in missing)
    return {row.id: row for row in found if row is not None}


async def find_task(backend: Backend, who: Principal, task_id: TaskId) -> TaskAnswer:
    """The caller has checked that `who` may see it. Names of other tenants and their tasks are left out."""

    def look(state: ClusterState) -> TaskAnswer | None:
        task = state.tasks.get(task_id)
        if task is None:
            return None
        reason = unreachable(state, task)
        reserved = None
        if task.status is TaskStatus.PENDING:
            why = explain(state, task_id, max(state.last_at, backend.runtime.now_ms()))
            if not isinstance(why, Rejection):
                why = told_to(who.tenants, state, why)
            reserved = None if isinstance(why, Rejection) else reservation_answer(why.reservation)
            if not isinstance(why, Rejection) and why.blockers:
                text = "; ".join(blocker.detail for blocker in why.blockers)
                codes = [{"code": blocker.code, **blocker.numbers} for blocker in why.blockers]
                reason = {"waiting_code": why.blockers[0].code, "waiting": text, "blockers": codes}
        awaited = state.after.get(task_id)
        names = gpu_names(state, task.gpu_ids)
        call = call_facts(state, task, backend.views.progress_of)
        shape = state.shapes[task.shape_id]
        shown = task_answer(task, shape, names, awaited=awaited, waits=reason, call=call)
        shown = _with_workdir(state, shown)
        return shown if reserved is None else replace(shown, reservation=reserved)

    answer = await backend.runtime.read(look)
    if answer is None:
        row = await asyncio.to_thread(backend.history.task, task_id)
        if row is None or not row.status.is_final:
            raise unknown_task(task_id)
        past = past_task_answer(row, await names_of(backend, (row,)))
        answer = await backend.runtime.read(lambda state: _with_workdir(state, past))
    return task_told_to(who.tenants, answer)


def _with_workdir(state: ClusterState, answer: TaskAnswer) -> TaskAnswer:
    """The directory where it runs or last ran, even if the submit gave none."""
    node = state.nodes.get(NodeId(answer.node or ""))
    task_id = parse_task_id(answer.task_id)
    if answer.workdir or answer.allocation or not answer.attempt or task_id is None:
        return answer
    if answer.entrypoint:  # it runs in the directory of its worker
        return answer
    if node is None or not node.work_dir:
        return answer
    return replace(
        answer, workdir=f"{node.work_dir}/{run_dir_name(task_id, answer.attempt)}", own_workdir=True
    )


def unknown_task(task_id: TaskId) -> ProblemError:
    return ProblemError(problem_of(UnknownTask(task_id=task_id)))


def task_id_of(text: str) -> TaskId:
    """Of a path. Ids of elements were replaced before the call: see check_permitted."""
    named = named_of(text)
    if isinstance(named, Element):
        raise TypeError(f"{text} was not resolved")
    return named


def named_of(text: str) -> Named:
    named = parse_named(text)
    if named is None:
        detail = f"{shorten(text)} is not a task id; ids look like task-42, or task-42_3 in an array."
        facts = {"task_id": text[:64]}
        raise ProblemError(
            Problem(status=404, title="No such task", code="unknown_task", detail=detail, facts=facts)
        )
    return named


# Queries


def parse_filter(
    status: TaskStatus | None, priority: str | None, tenant: str | None, pool: str | None
) -> Filter:
    return Filter(
        status=status,
        priority=None
        if priority is None
        else query_value("priority", _number_or_text(priority), fields.priority),
        tenant=None if tenant is None else query_value("tenant", tenant, fields.tenant),
        pool=None if pool is None else query_value("pool", pool, fields.pool),
    )


def parse_limit(text: str | None, default: int = 100, most: int = MAX_PER_PAGE) -> int:
    return default if text is None else parse_whole("limit", text, 1, most)


def parse_whole(name: str, text: str, low: int, high: int) -> int:
    value = int(text) if text.isascii() and text.isdigit() and len(text) < 18 else text
    return int(query_value(name, value, fields.whole(low, high)))


def parse_flag(name: str, text: str | None) -> bool:
    if text is None or text in {"false", "0"}:
        return False
    if text in {"true", "1", ""}:
        return True
    raise bad_query(name, text, "true or false")


def query_value(name: str, value: object, check: Check) -> Any:
    try:
        return check(value)
    except Unacceptable as bad:
        raise bad_query(name, value, bad.expected) from None


def status_word(value: Any) -> str:
    try:
        return TaskStatus(value).value
    except ValueError:
        raise Unacceptable("pending, running, success, failed or cancelled") from None


def _number_or_text(text: str) -> int | str:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else text


def refuse_queries(given: Sequence[str], known: Container[str]) -> None:
    """A filter with a typing error must not mean "all"."""
    for name in given:
        if name not in known:
            detail = "This parameter is not known here."
        elif given.count(name) > 1:
            detail = "Given more than once."
        else:
            continue
        raise BadRequest(
            "invalid_query", f"{name[:64]}: {detail}", errors=[FieldError(path=name[:64], detail=detail)]
        )


def bad_query(name: str, value: object, expected: str) -> BadRequest:
    detail = f"Expected {expected}, got {shorten(value)}."
    return BadRequest("invalid_query", f"{name}: {detail}", errors=[FieldError(path=name, detail=detail)])


def encode_cursor(task_id: int) -> str:
    return base64.urlsafe_b64encode(b"v1:%d" % task_id).decode().rstrip("=")


def decode_cursor(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        plain = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        plain = b""
    number = plain.removeprefix(b"v1:")
    if len(text) > 64 or not plain.startswith(b"v1:") or not number.isdigit() or len(number) > 18:
        raise bad_query("cursor", text, "a next_cursor of an earlier answer")
    return int(number)
