"""Callers that wait for the answer to a command or for a read of the state."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from dgpu.core.events import Event
from dgpu.core.rejections import Rejection
from dgpu.core.state import ClusterState
from dgpu.service.loop.failures import CommandFailed, NotMaster, OutcomeUnknown
from dgpu.service.machine.outputs import ReadNow, Reply, ReplyFailed

T = TypeVar("T")
Answer = tuple[Event, ...] | Rejection


class Answers:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._commands: dict[int, asyncio.Future[Answer]] = {}
        self._reads: dict[int, tuple[asyncio.Future[Any], Callable[[ClusterState], Any]]] = {}

    @property
    def has_reads(self) -> bool:
        return bool(self._reads)

    def of_command(self, request_id: int) -> asyncio.Future[Answer]:
        future = self._commands[request_id] = self._loop.create_future()
        return future

    def of_read(self, request_id: int, look: Callable[[ClusterState], T]) -> asyncio.Future[tuple[T, bool]]:
        """The result of `look`, and whether the state was stale."""
        future: asyncio.Future[tuple[T, bool]] = self._loop.create_future()
        self._reads[request_id] = (future, look)
        return future

    def reply(self, output: Reply) -> None:
        future = self._commands.pop(output.request_id)
        if not future.done():
            future.set_result(output.result)

    def reply_failed(self, output: ReplyFailed) -> None:
        future = self._commands.pop(output.request_id)
        if not future.done():
            future.set_exception(CommandFailed(output.error))

    def read_now(self, output: ReadNow, state: ClusterState) -> None:
        future, look = self._reads.pop(output.request_id)
        if not future.done():
            try:
                future.set_result((look(state), output.is_stale))
            except Exception as error:  # noqa: BLE001 - the caller gets it
                future.set_exception(error)

    def refuse(self, request_id: int) -> None:
        self._commands.pop(request_id).set_exception(NotMaster())

    def fail(self, unknown: set[int]) -> None:
        """The leadership is lost. `unknown`: commands that were being committed."""
        for request_id, future in self._commands.items():
            if not future.done():
                future.set_exception(OutcomeUnknown() if request_id in unknown else NotMaster())
        for reading, _ in self._reads.values():
            if not reading.done():
                reading.set_exception(NotMaster())
        self._commands, self._reads = {}, {}
