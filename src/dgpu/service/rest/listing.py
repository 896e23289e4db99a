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

from dgpu.core.foresight.barriers import barriers_of
from dgpu.core.foresight.blockers import Blocker, blockers_of, plural
from dgpu.core.foresight.conditions import conditions_of
from dgpu.core.foresight.explain import back_off, explain
from dgpu.core.foresight.reserved import fits_but_for_reservations, fits_now, room_blockers
from dgpu.core.index.line import Line
from dgpu.core.model.demand import Demand
from dgpu.core.model.dependencies import Awaited
from dgpu.core.model.ids import NodeId, ShapeId, TaskId, TenantId, parse_task_id
from dgpu.core.model.task import Pool, Shape, Task, TaskStatus
from dgpu.core.rejections import Rejection, UnknownTask
from dgpu.core.state import ClusterState
from dgpu.service.history.filters import TaskFilters
from dgpu.service.history.reader import PastTask
from dgpu.service.rest.backend import Backend, ProblemError
from dgpu.service.views.tasks import past_task_answer, reservation_answer, task_answer
from dgpu.service.views.views import Filter, Forgotten
from dgpu.wire import fields
from dgpu.wire.answers import FieldError, Problem, TaskAnswer, TaskPage, instant
from dgpu.wire.fields import Check, Unacceptable
from dgpu.wire.json_body import BadRequest, shorten
from dgpu.wire.problem import problem_of
from dgpu.wire.run_dirs import run_dir_name

MAX_PER_PAGE = 1_000
MAX_EXPLAINED = 32  # different demands of one page, and as many checks of reservations
_ALWAYS_EXPLAINED = 8  # of each, for any number of nodes
_MAX_NODES = 1_000  # examined for all demands of one page
_SLICE = 50  # tasks of a page at a time
_MAX_KEPT_NODES = 256  # the same for checks of reservations, which cost more

T = TypeVar("T")
U = TypeVar("U")


class _Row(NamedTuple):
    """A task at a committed point. The values do not change, so the answer can be built later."""

    task: Task
    shape: Shape
    awaited: Awaited | None
    reason: dict[str, str]


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
        tasks=[merged[task_id] for task_id in ids[:limit]],
        total=total,
        next_cursor=encode_cursor(ids[limit - 1]) if more else None,
    )


def _live_part(
    backend: Backend, state: ClusterState, wanted: Filter, before: int | None, limit: int
) -> _Live:
    rows = _rows(backend, state, backend.views.newest(wanted, before, limit))
    return _Live(rows, backend.views.live_total(wanted))


def answers_of(
    backend: Backend, state: ClusterState, tasks: Iterable[Task]
) -> list[tuple[TaskId, TaskAnswer]]:
    return list(map(_answer_of, _rows(backend, state, tasks)))


def _rows(backend: Backend, state: ClusterState, tasks: Iterable[Task]) -> list[_Row]:
    reasons = _Reasons(state, max(state.last_at, backend.runtime.now_ms()))
    return [
        _Row(task, state.shapes[task.shape_id], state.after.get(task.id), reasons.of(task)) for task in tasks
    ]


def _answer_of(row: _Row) -> tuple[TaskId, TaskAnswer]:
    return row.task.id, task_answer(row.task, row.shape, awaited=row.awaited, **row.reason)


async def _in_slices(rows: Iterable[T], make: Callable[[T], U]) -> AsyncIterator[U]:
    """A page of 1,000 takes 20 ms and more; between the slices the loop serves other requests."""
    for number, row in enumerate(rows, 1):
        yield make(row)
        if not number % _SLICE:
            await asyncio.sleep(0)


class _Reasons:
    """Why tasks of a page wait. Tasks with the same demand wait for the same reason."""

    def __init__(self, state: ClusterState, at: int) -> None:
        self._state = state
        self._at = at
        self._by_shape: dict[tuple[ShapeId, int, int], dict[str, str]] = {}
        self._by_demand: dict[Demand, Blocker | None] = {}
        self._by_holder: dict[tuple[Demand, int, int], Blocker | None] = {}
        self._max_demands = _as_many(_MAX_NODES, len(state.nodes))
        self._max_holders = _as_many(_MAX_KEPT_NODES, len(state.rooms.reserved))

    def of(self, task: Task) -> dict[str, str]:
        if task.status is not TaskStatus.PENDING:
            return _unreachable(self._state, task)
        if conditions := conditions_of(self._state, task):
            return {"waiting_code": conditions[0].code, "waiting": conditions[0].detail}
        if task.eligible_at > self._at:  # its own reason, independent of its shape
            blocker = back_off(task, self._at)
            return {"waiting_code": blocker.code, "waiting": blocker.detail}
        about = self._about(task)
        reason = self._by_shape.get((task.shape_id, *about))
        if reason is None:
            reason = self._by_shape[task.shape_id, *about] = self._of_shape(task)
        return reason

    def _about(self, task: Task) -> tuple[int, int]:
        """The values of a task, beyond its shape, that decide whether a reservation blocks it."""
        reservations = self._state.reservations
        return (task.timeout_ms, task.id if task.id in reservations else 0) if reservations else (0, 0)

    def _of_shape(self, task: Task) -> dict[str, str]:
        line = self._state.queue.line_of(task)
        if barriers := barriers_of(self._state, line, task.id, self._at):
            return {"waiting_code": barriers[0].code, "waiting": barriers[0].detail}
        return self._of_demand(task, line)

    def _of_demand(self, task: Task, line: Line) -> dict[str, str]:
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

    def _in_short(self, demand: Demand) -> dict[str, str]:
        """Without examining the nodes."""
        if fits_now(self._state, demand):
            return _told(None)
        where = "one node" if demand.nodes == 1 else f"each of {demand.nodes} nodes"
        detail = f"needs {plural(demand.gpus, 'GPU')} on {where}; there is no room for it now"
        return {"waiting_code": "no_room", "waiting": detail}


# Enough is free, but reserved: then the task itself and its time limit matter.
_KEPT = Blocker(code="reserved_for", detail="free GPUs are reserved for other tasks")


def _as_many(looks: int, nodes: int) -> int:
    return min(MAX_EXPLAINED, max(_ALWAYS_EXPLAINED, looks // max(1, nodes)))


def _told(blocker: Blocker | None) -> dict[str, str]:
    if blocker is None:
        return {"waiting_code": "tasks_ahead", "waiting": "its turn has not come"}
    return {"waiting_code": blocker.code, "waiting": blocker.detail}


def _unreachable(state: ClusterState, task: Task) -> dict[str, str]:
    """For a running task: why it is unknown whether it still runs."""
    if task.status is not TaskStatus.RUNNING or task.node_id is None:
        return {}
    node = state.nodes[task.node_id]
    if node.unconfirmed_since:
        since = instant(node.unconfirmed_since)
        words = f"node {node.id} not heard from since the scheduler started at {since}"
        return {"waiting_code": "node_unconfirmed", "waiting": words}
    if not node.offline_since:
        return {}
    since = instant(node.offline_since)
    return {"waiting_code": "node_unreachable", "waiting": f"node {node.id} unreachable since {since}"}


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
    rows = {row.id: row for row in page.tasks if row.status.is_final}
    unmarked = views.forgotten_after(page.index, wanted)
    missing = [
        gone
        for gone in unmarked
        if gone.task_id not in rows and above < gone.task_id and (before is None or gone.task_id < before)
    ]
    missing.sort(key=lambda gone: -gone.task_id)
    if missing:
        rows.update(await asyncio.to_thread(_rows_of, backend, missing[:limit]))
    answers = [pair async for pair in _in_slices(rows.values(), lambda row: (row.id, past_task_answer(row)))]
    return answers, page.total + len(unmarked)


def filters_of(wanted: Filter) -> TaskFilters:
    return TaskFilters(
        status=wanted.status,
        priority=wanted.priority,
        tenant_id=TenantId(wanted.tenant) if wanted.tenant is not None else None,
        pool=Pool(wanted.pool) if wanted.pool is not None else None,
    )


def _rows_of(backend: Backend, missing: list[Forgotten]) -> dict[TaskId, PastTask]:
    found = (backend.history.task(gone.task_id) for gone in missing)
    return {row.id: row for row in found if row is not None}


async def find_task(backend: Backend, task_id: TaskId) -> TaskAnswer:
    def look(state: ClusterState) -> TaskAnswer | None:
        task = state.tasks.get(task_id)
        if task is None:
            return None
        reason = _unreachable(state, task)
        reserved = None
        if task.status is TaskStatus.PENDING:
            why = explain(state, task_id, max(state.last_at, backend.runtime.now_ms()))
            reserved = None if isinstance(why, Rejection) else reservation_answer(why.reservation)
            if not isinstance(why, Rejection) and why.blockers:
                text = "; ".join(blocker.detail for blocker in why.blockers)
                reason = {"waiting_code": why.blockers[0].code, "waiting": text}
        awaited = state.after.get(task_id)
        shown = task_answer(task, state.shapes[task.shape_id], awaited=awaited, **reason)
        shown = _with_workdir(state, shown)
        return shown if reserved is None else replace(shown, reservation=reserved)

    answer = await backend.runtime.read(look)
    if answer is None:
        row = await asyncio.to_thread(backend.history.task, task_id)
        if row is None or not row.status.is_final:
            raise unknown_task(task_id)
        past = past_task_answer(row)
        answer = await backend.runtime.read(lambda state: _with_workdir(state, past))
    return answer


def _with_workdir(state: ClusterState, answer: TaskAnswer) -> TaskAnswer:
    """The directory where it runs or last ran, even if the submit gave none."""
    node = state.nodes.get(NodeId(answer.node or ""))
    task_id = parse_task_id(answer.task_id)
    if answer.workdir or answer.allocation or not answer.attempt or task_id is None:
        return answer
    if node is None or not node.work_dir:
        return answer
    return replace(
        answer, workdir=f"{node.work_dir}/{run_dir_name(task_id, answer.attempt)}", own_workdir=True
    )


def unknown_task(task_id: TaskId) -> ProblemError:
    return ProblemError(problem_of(UnknownTask(task_id=task_id)))


def task_id_of(text: str) -> TaskId:
    task_id = parse_task_id(text)
    if task_id is None:
        detail = f"{shorten(text)} is not a task id; ids look like task-42."
        raise ProblemError(Problem(status=404, title="No such task", code="unknown_task", detail=detail))
    return task_id


# Queries


def parse_filter(status: str | None, priority: str | None, tenant: str | None, pool: str | None) -> Filter:
    return Filter(
        status=None if status is None else TaskStatus(query_value("status", status, _status)),
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


def _status(value: Any) -> str:
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
