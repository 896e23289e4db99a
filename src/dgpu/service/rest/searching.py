"""Pages of a search: by words, node, GPU, array and others, from either end; and pages in which an array is one row.

There is no index of words, so tasks are examined one by one: in memory in slices, so that other requests get their
turn, and in the history in a thread. A page that took too long is returned incomplete, and its cursor continues.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace

from dgpu.core.model.array import MAX_TASKS
from dgpu.core.model.ids import TaskId, parse_task_id
from dgpu.core.model.task import Shape, Task
from dgpu.core.state import ClusterState
from dgpu.service.access.anonymous import task_told_to
from dgpu.service.history.filters import Search
from dgpu.service.rest import arrays, listing
from dgpu.service.rest.backend import Backend
from dgpu.service.rest.search_terms import matcher
from dgpu.service.views.tasks import past_task_answer
from dgpu.service.views.views import Filter
from dgpu.wire.answers import TaskAnswer, TaskPage

MAX_LOOKED_AT = 200_000  # tasks, for one page
AT_A_TIME = 2_000

Found = list[tuple[TaskId, TaskAnswer]]


class _Part(NamedTuple):
    found: Found
    stopped_at: int | None  # None: the end was reached


class _Step(NamedTuple):
    examined: int
    edge: int | None  # the next step begins here; None: the end was reached


async def folded_page(
    backend: Backend, wanted: Filter, search: Search, edge: int | None, limit: int
) -> TaskPage:
    page = await search_page(backend, wanted, search, edge, limit, oldest=False, fold=True)
    tasks = [await _with_progress(backend, task) for task in page.tasks]
    if search == Search():
        return replace(page, tasks=tasks, total=await listing.total_of(backend, wanted), total_is_exact=True)
    return replace(page, tasks=tasks)


async def _with_progress(backend: Backend, task: TaskAnswer) -> TaskAnswer:
    if task.array_id is None or task.array_count is None or task.array_count == 1:
        return task
    array_id = listing.task_id_of(task.array_id)
    return replace(task, array=await arrays.progress_of(backend, array_id, task.array_count))


async def search_page(
    backend: Backend,
    wanted: Filter,
    search: Search,
    edge: int | None,
    limit: int,
    *,
    oldest: bool,
    fold: bool = False,
) -> TaskPage:
    live = await _live(backend, wanted, search, edge, limit + 1, oldest=oldest, fold=fold)
    past = _Part([], None)
    if _may_be_past(wanted, search):
        past = await _past(backend, wanted, search, edge, limit + 1, oldest=oldest, fold=fold)
    merged = dict(past.found)
    merged.update(live.found)  # the data in memory is newer
    ids: list[int] = sorted(merged, reverse=not oldest)
    # One source stopped here; beyond this place the results of the other are incomplete.
    stops = [part.stopped_at for part in (live, past) if part.stopped_at is not None]
    nearest = (min(stops) if oldest else max(stops)) if stops else None
    if nearest is not None and fold:
        nearest = _begin_of(nearest, merged)
    if nearest is not None:
        ids = [each for each in ids if (each <= nearest if oldest else each >= nearest)]
    more = len(ids) > limit
    cursor = ids[limit - 1] if more else nearest
    return TaskPage(
        tasks=[task_told_to(wanted.tenants, merged[TaskId(each)]) for each in ids[:limit]],
        total=min(len(ids), limit),
        total_is_exact=cursor is None and edge is None,
        next_cursor=None if cursor is None else listing.encode_cursor(cursor),
    )


def _may_be_past(wanted: Filter, search: Search) -> bool:
    statuses = search.statuses or ((wanted.status,) if wanted.status is not None else ())
    return not statuses or any(status.is_final for status in statuses)


def _key(task_id: TaskId, answer: TaskAnswer) -> TaskId:
    """The place of a folded row: that of its array. No other task has an id within an array."""
    array_id = None if answer.array_id is None else parse_task_id(answer.array_id)
    return task_id if array_id is None else array_id


def _begin_of(stop: int, found: dict[TaskId, TaskAnswer]) -> int:
    """A row that was found stands for all of its array, also for tasks beyond the stop."""
    return max(
        (key for key, answer in found.items() if key <= stop < key + (answer.array_count or 1)), default=stop
    )


async def _live(
    backend: Backend,
    wanted: Filter,
    search: Search,
    edge: int | None,
    limit: int,
    *,
    oldest: bool,
    fold: bool,
) -> _Part:
    matches = matcher(search)
    found: Found = []
    looked_at = 0
    edge = _first_edge(search, edge, oldest=oldest)
    while True:
        look = partial(
            _some,
            backend,
            wanted=wanted,
            search=search,
            matches=matches,
            edge=edge,
            limit=limit - len(found),
            found=found,
            oldest=oldest,
            fold=fold,
        )
        step = await backend.runtime.read(look)
        if len(found) >= limit:
            return _Part(found, int(found[-1][0]))
        if step.edge is None:
            return _Part(found, None)
        edge = step.edge
        looked_at += step.examined
        if looked_at >= MAX_LOOKED_AT:
            return _Part(found, edge)
        await asyncio.sleep(0)


def _first_edge(search: Search, edge: int | None, *, oldest: bool) -> int | None:
    if not search.array_id:
        return edge
    if oldest:
        return max(search.array_id - 1, edge or 0)
    return min(search.array_id + MAX_TASKS, (1 << 62) if edge is None else edge)


def _some(
    backend: Backend,
    state: ClusterState,
    *,
    wanted: Filter,
    search: Search,
    matches: Callable[[Task, Shape], bool],
    edge: int | None,
    limit: int,
    found: Found,
    oldest: bool,
    fold: bool,
) -> _Step:
    """Examines the next tasks. With `fold`, the rest of an array is skipped as soon as one of its tasks matches."""
    ids = backend.views.some_ids(wanted.status, edge, AT_A_TIME, oldest=oldest)
    is_end = len(ids) < AT_A_TIME
    if search.array_id:
        inside = range(search.array_id, search.array_id + MAX_TASKS)
        is_end = is_end or ids[-1] not in inside
        ids = [each for each in ids if each in inside]
    hits: list[Task] = []
    skipped_from = ids[0] + 1 if ids else 0  # newest first: ids from here on are done
    for task_id in ids:
        task = state.tasks.get(TaskId(task_id))
        if task is None or (fold and task_id >= skipped_from):
            continue
        if wanted.status is not None and task.status is not wanted.status:
            continue
        shape = state.shapes[task.shape_id]
        if wanted.takes_key((shape.tenant_id, shape.pool, shape.priority)) and matches(task, shape):
            hits.append(task)
            if fold and task.array_id:
                skipped_from = task.array_id
            if len(hits) == limit:
                break
    answers = listing.answers_of(backend, state, hits, wanted.tenants)
    found += [(_key(*pair), pair[1]) for pair in answers] if fold else answers
    if is_end or not ids:
        return _Step(len(ids), None)
    return _Step(len(ids), min(ids[-1], skipped_from) if fold else ids[-1])


async def _past(
    backend: Backend,
    wanted: Filter,
    search: Search,
    edge: int | None,
    limit: int,
    *,
    oldest: bool,
    fold: bool,
) -> _Part:
    rows, stopped_at = await asyncio.to_thread(
        backend.history.search,
        listing.filters_of(wanted),
        search,
        edge=edge,
        limit=limit,
        most=MAX_LOOKED_AT,
        oldest=oldest,
    )
    if len(rows) >= limit:
        stopped_at = rows[-1].id
    found: dict[TaskId, TaskAnswer] = {}
    names = await listing.names_of(backend, rows)
    for row in rows:
        found.setdefault((row.array_id or row.id) if fold else row.id, past_task_answer(row, names))
    return _Part(list(found.items()), stopped_at)
