"""Pages of a search: by words, node or GPU, from either end.

There is no index of words, so tasks are examined one by one: in memory in slices, so that other requests get their
turn, and in the history in a thread. A page that took too long is returned incomplete, and its cursor continues.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import msgspec

from dgpu.core.model.ids import TaskId, task_name
from dgpu.core.model.task import Shape, Task, TaskDetail
from dgpu.core.state import ClusterState
from dgpu.service.access.anonymous import task_told_to
from dgpu.service.history.filters import Search
from dgpu.service.rest import listing
from dgpu.service.rest.backend import Backend
from dgpu.service.views.tasks import past_task_answer
from dgpu.service.views.views import Filter
from dgpu.wire.answers import TaskAnswer, TaskPage

MAX_WORDS_CHARS = 100
MAX_LOOKED_AT = 200_000  # tasks, for one page
AT_A_TIME = 2_000
_NEVER_PLAIN = frozenset('"\\')  # JSON escapes these characters

_decode_detail = msgspec.json.Decoder(TaskDetail).decode
Found = list[tuple[TaskId, TaskAnswer]]


class _Part(NamedTuple):
    found: Found
    stopped_at: int | None  # None: the end was reached


def parse_search(words: str | None, node: str | None, gpu: str | None) -> Search:
    for name, text in (("q", words), ("node", node), ("gpu", gpu)):
        if text is not None and not (text.strip() and len(text) <= MAX_WORDS_CHARS and text.isprintable()):
            raise listing.bad_query(name, text, f"1 to {MAX_WORDS_CHARS} printable characters")
    return Search(words=(words or "").strip().lower(), node_id=node or "", gpu_id=gpu or "")


def parse_sort(text: str | None) -> bool:
    """Whether the oldest come first."""
    if text in {None, "newest", "oldest"}:
        return text == "oldest"
    raise listing.bad_query("sort", text, "newest or oldest")


async def search_page(
    backend: Backend, wanted: Filter, search: Search, edge: int | None, limit: int, *, oldest: bool
) -> TaskPage:
    live = await _live(backend, wanted, search, edge, limit + 1, oldest=oldest)
    past = _Part([], None)
    if wanted.status is None or wanted.status.is_final:
        past = await _past(backend, wanted, search, edge, limit + 1, oldest=oldest)
    merged = dict(past.found)
    merged.update(live.found)  # the data in memory is newer
    ids: list[int] = sorted(merged, reverse=not oldest)
    # One source stopped here; beyond this place the results of the other are incomplete.
    stops = [part.stopped_at for part in (live, past) if part.stopped_at is not None]
    nearest = (min(stops) if oldest else max(stops)) if stops else None
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


async def _live(
    backend: Backend, wanted: Filter, search: Search, edge: int | None, limit: int, *, oldest: bool
) -> _Part:
    matches = _matcher(search)
    found: Found = []
    looked_at = 0
    while True:
        look = partial(
            _some,
            backend,
            wanted=wanted,
            matches=matches,
            edge=edge,
            limit=limit - len(found),
            found=found,
            oldest=oldest,
        )
        ids = await backend.runtime.read(look)
        if len(ids) < AT_A_TIME and len(found) < limit:
            return _Part(found, None)
        edge = ids[-1]
        looked_at += len(ids)
        if len(found) >= limit:
            return _Part(found, int(found[-1][0]))
        if looked_at >= MAX_LOOKED_AT:
            return _Part(found, edge)
        await asyncio.sleep(0)


def _some(
    backend: Backend,
    state: ClusterState,
    *,
    wanted: Filter,
    matches: Callable[[Task, Shape], bool],
    edge: int | None,
    limit: int,
    found: Found,
    oldest: bool,
) -> list[int]:
    """Examines the next tasks; returns their ids."""
    ids = backend.views.some_ids(wanted.status, edge, AT_A_TIME, oldest=oldest)
    hits: list[Task] = []
    for task_id in ids:
        task = state.tasks.get(TaskId(task_id))
        if task is None or (wanted.status is not None and task.status is not wanted.status):
            continue
        shape = state.shapes[task.shape_id]
        if wanted.takes_key((shape.tenant_id, shape.pool, shape.priority)) and matches(task, shape):
            hits.append(task)
            if len(hits) == limit:
                break
    found += listing.answers_of(backend, state, hits, wanted.tenants)
    return ids


async def _past(
    backend: Backend, wanted: Filter, search: Search, edge: int | None, limit: int, *, oldest: bool
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
    return _Part([(row.id, past_task_answer(row)) for row in rows], stopped_at)


def _matcher(search: Search) -> Callable[[Task, Shape], bool]:
    """Values of the environment are in the same blob as name and command: a match only in those does not count."""
    words = search.words
    plain = (
        words.encode()
        if not _NEVER_PLAIN & set(words) and (words.isascii() or words.upper() == words)
        else b""
    )
    known: dict[bytes, bool] = {}  # tasks of one batch share their detail

    def says(detail: bytes) -> bool:
        verdict = known.get(detail)
        if verdict is None:
            if len(known) > AT_A_TIME:
                known.clear()
            verdict = known[detail] = (not plain or plain in detail.lower()) and _is_in(
                words, _decode_detail(detail)
            )
        return verdict

    def matches(task: Task, shape: Shape) -> bool:
        if search.gpu_id and search.gpu_id not in task.gpu_ids:
            return False
        if search.node_id and search.node_id != task.node_id and search.node_id not in task.node_ids:
            return False
        return (
            not words or words in task_name(task.id) or words in shape.tenant_id.lower() or says(task.detail)
        )

    return matches


def _is_in(words: str, detail: TaskDetail) -> bool:
    command = detail.command if isinstance(detail.command, str) else " ".join(detail.command)
    return words in detail.name.lower() or words in command.lower()
