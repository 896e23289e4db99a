"""Reads the tasks from the schedulers and compares them with the history."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from dgpu.client.errors import ServerFailed, Unreachable
from dgpu.client.sync import Client
from dgpu.entry.chaos import history
from dgpu.entry.chaos.history import HELD, Found, Submit

_T = TypeVar("_T")
_PATIENCE_S = 30.0  # for a standby or the history to catch up
_PAUSE_S = 0.3
_PAGE = 500


def check_submits(urls: Mapping[str, str], submits: Sequence[Submit]) -> list[str]:
    """Each scheduler knows all of them, and nothing happened to them without a cause."""
    if not submits:
        return []
    wrong: list[str] = []
    lowest = min(each.number for each in submits)
    for name, url in urls.items():
        found = _patiently(
            lambda url=url: tasks_from(url, lowest),  # type: ignore[misc]
            lambda found: all(each.number in found for each in submits),
        )
        wrong += [*history.lost(submits, found, name), *history.without_cause(found)]
    return wrong


def all_tasks(urls: Mapping[str, str]) -> list[Mapping[int, Found]]:
    """Of each scheduler, once they agree or the patience ends. The load has stopped."""
    return _patiently(
        lambda: [tasks_from(url, 0) for url in urls.values()], lambda lists: lists[0] == lists[-1]
    )


def tasks_from(url: str, lowest: int) -> dict[int, Found]:
    """Down to this number. A list that breaks off is an empty list: it is read again."""
    found: dict[int, Found] = {}
    with contextlib.suppress(Unreachable, ServerFailed):
        for task in Client(url).list(page_size=_PAGE):
            number = int(task.task_id.removeprefix("task-"))
            if number < lowest:
                break
            found[number] = Found(
                name=task.name, status=task.status, attempt=task.attempt, reason=task.reason or task.error
            )
        return found
    return {}


def cancel_held(urls: Iterable[str]) -> None:
    """Keeps the queue short. What cannot be cancelled now is cancelled after the next fault."""
    with contextlib.suppress(Unreachable, ServerFailed):
        Client(urls).cancel_where(tenant=HELD, status="pending")


def open_tasks(urls: Iterable[str]) -> int:
    """Tasks that have not ended, without the held ones. -1: not known."""
    client = Client(urls)
    try:
        return sum(
            client.page(limit=1, tenant=tenant, status=status).total
            for tenant in (history.RUN, history.LONG)
            for status in ("pending", "running")
        )
    except (Unreachable, ServerFailed):
        return -1


def _patiently(read: Callable[[], _T], is_good: Callable[[_T], bool]) -> _T:
    give_up_at_s = time.monotonic() + _PATIENCE_S
    while not is_good(found := read()) and time.monotonic() < give_up_at_s:
        time.sleep(_PAUSE_S)
    return found
