"""The newest results, in memory, and the requests that wait for the end of calls. The file of results follows later."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from dgpu.core.events import CallReturned, CallsFailed, TaskFinished, TasksCancelled
from dgpu.core.model.ids import TaskId
from dgpu.service.machine.outputs import CommittedGroup
from dgpu.service.results.file import StoredResult, stored

MAX_BYTES: Final = 64 << 20
_ROW_BYTES: Final = 512  # of an entry besides its result and traceback


class RecentResults:
    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._known: dict[TaskId, StoredResult] = {}
        self._waits: dict[TaskId, list[asyncio.Future[None]]] = {}
        self._is_closed = False

    def on_group(self, group: CommittedGroup) -> None:
        for event in group.events:
            if type(event) is CallReturned:
                self._keep(stored(event))
            elif self._waits:
                if type(event) is TaskFinished:
                    self._wake(event.task_id)
                elif isinstance(event, TasksCancelled | CallsFailed):
                    for task_id in event.task_ids:
                        self._wake(task_id)

    def find(self, task_id: TaskId) -> StoredResult | None:
        return self._known.get(task_id)

    async def wait(self, task_ids: Iterable[TaskId], seconds: float) -> None:
        """Returns when one of the tasks has ended since the call, the time is over, or the service stops."""
        if self._is_closed:
            return
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        ids = list(task_ids)
        for task_id in ids:
            self._waits.setdefault(task_id, []).append(ended)
        try:
            await asyncio.wait({ended}, timeout=seconds)
        finally:
            for task_id in ids:
                waits = self._waits.get(task_id, [])
                if ended in waits:
                    waits.remove(ended)
                if not waits:
                    self._waits.pop(task_id, None)

    def close(self) -> None:
        """Ends all waits, so that a stop of the service need not cut them."""
        self._is_closed = True
        for task_id in list(self._waits):
            self._wake(task_id)

    def _wake(self, task_id: TaskId) -> None:
        for ended in self._waits.pop(task_id, ()):
            if not ended.done():
                ended.set_result(None)

    def _keep(self, result: StoredResult) -> None:
        known = self._known.pop(result.task_id, None)
        self._bytes += _size(result) - (0 if known is None else _size(known))
        self._known[result.task_id] = result
        while self._bytes > self._max_bytes:
            oldest = next(iter(self._known))
            self._bytes -= _size(self._known.pop(oldest))


def _size(result: StoredResult) -> int:
    return len(result.result) + len(result.traceback) + _ROW_BYTES
