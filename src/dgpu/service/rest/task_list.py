"""The list of tasks: the most frequent call of users and scripts, and the first after a restart. It does not wait for
the frame.
"""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import parse_qsl

import msgspec

from dgpu.service.access.principal import Principal
from dgpu.service.history.filters import Search
from dgpu.service.rest import listing, search_terms, searching
from dgpu.service.rest.backend import Backend
from dgpu.wire.answers import TaskPage

PATH = "/api/v1/tasks"

_SLICE = 200  # tasks encoded at a time

_encode = msgspec.json.Encoder().encode


async def answer(backend: Backend, who: Principal, query: bytes) -> bytes:
    given = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
    listing.refuse_queries([name for name, _ in given], task_page.__kwdefaults__ or ())
    page = await task_page(backend, who, **dict(given))
    if len(page.tasks) <= _SLICE:
        return _encode(page)
    # Encoded tasks with commas between them. Between the pieces the loop serves other requests.
    pieces: list[Any] = []
    for first in range(0, len(page.tasks), _SLICE):
        pieces.append(msgspec.Raw(_encode(page.tasks[first : first + _SLICE])[1:-1]))
        await asyncio.sleep(0)
    return _encode(msgspec.structs.replace(page, tasks=pieces))


async def task_page(
    backend: Backend,
    who: Principal,
    *,
    status: str | None = None,
    priority: str | None = None,
    tenant: str | None = None,
    pool: str | None = None,
    q: str | None = None,
    name: str | None = None,
    user: str | None = None,
    label: str | None = None,
    node: str | None = None,
    gpu: str | None = None,
    array: str | None = None,
    sort: str | None = None,
    fold: str | None = None,
    limit: str | None = None,
    cursor: str | None = None,
) -> TaskPage:
    statuses = search_terms.parse_statuses(status)
    only = statuses[0] if len(statuses) == 1 else None
    wanted = listing.parse_filter(only, priority, tenant, pool)._replace(tenants=who.tenants)
    before, number = listing.decode_cursor(cursor), listing.parse_limit(limit)
    terms = search_terms.Terms(q=q, node=node, gpu=gpu, name=name, user=user, label=label, array=array)
    search = search_terms.parse_search(terms, statuses if only is None else ())
    oldest, folded = search_terms.parse_sort(sort), listing.parse_flag("fold", fold)
    if oldest and folded:
        raise listing.bad_query(
            "fold", fold, "newest tasks first: a list of the oldest ones cannot be folded"
        )
    if folded:
        return await searching.folded_page(backend, wanted, search, before, number)
    if oldest or search != Search():
        return await searching.search_page(backend, wanted, search, before, number, oldest=oldest)
    return await listing.list_page(backend, wanted, before, number)
