"""One reader's way through the output of a task: agent or store, one attempt or several."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Protocol

import msgspec

from dgpu.core.ids import LeaseId, NodeId, TaskId
from dgpu.core.task import TaskStatus
from dgpu.service.logstore import AttemptOutput
from dgpu.wire.ranks import attempt_of, run_number

SETTLE_S = 3.0  # for a node that is back to send what it had
_PATIENCE_S = 30.0  # for a node to come back while its task is being followed


class OutputUnavailable(Exception):  # noqa: N818 - it names what the output is
    """The text says why, for people."""


class Place(msgspec.Struct, frozen=True):
    lease_id: LeaseId
    node_id: NodeId


class Seen(msgspec.Struct, frozen=True):
    """A task as far as its output is concerned."""

    status: TaskStatus
    attempt: int
    place: Place | None  # of the attempt, while it runs
    node_id: NodeId | None  # of the attempt


class Source(Protocol):
    async def look(self, task_id: TaskId, rank: int = 0) -> Seen | None: ...

    async def stored(self, task_id: TaskId, attempt: int) -> AttemptOutput | None: ...

    def place(self, task_id: TaskId, attempt: int) -> Place | None: ...

    def is_attached(self, node_id: NodeId) -> bool: ...

    def fetch(
        self, place: Place, offset: int, tail_bytes: int, *, follow: bool
    ) -> AsyncIterator[tuple[int, bytes]]: ...

    async def wait_for_change(self, task_id: TaskId) -> None: ...


class RankSource:
    """The output of another rank than the first, asked for as if it were the only one."""

    def __init__(self, source: Source, rank: int) -> None:
        self._source = source
        self._rank = rank
        self.is_attached = source.is_attached
        self.fetch = source.fetch
        self.wait_for_change = source.wait_for_change

    async def look(self, task_id: TaskId, rank: int = 0) -> Seen | None:
        return await self._source.look(task_id, rank or self._rank)

    async def stored(self, task_id: TaskId, attempt: int) -> AttemptOutput | None:
        latest = attempt
        if not latest:  # so old that only its output is left
            first = await self._source.stored(task_id, 0)
            latest = first.attempt if first is not None else 0
        return await self._source.stored(task_id, run_number(latest, self._rank))

    def place(self, task_id: TaskId, attempt: int) -> Place | None:
        return self._source.place(task_id, run_number(attempt, self._rank))


class Reading:
    def __init__(
        self, source: Source, task_id: TaskId, attempt: int, tail_bytes: int, *, follow: bool
    ) -> None:
        self._source = source
        self._task_id = task_id
        self._only_attempt = attempt
        self._attempt = attempt
        self._tail_bytes = tail_bytes
        self._follow = follow
        self._offset = 0  # behind the last byte that was read
        self._is_done = False  # with the attempt
        self._was_running = False  # the attempt, when this reader waited for its node
        self._was_over = False  # the attempt, before this reader looked for what it has written
        self._give_up_at = 0.0
        self._back_since = 0.0

    async def pieces(self) -> AsyncIterator[bytes]:
        while await self._find_attempt():
            self._is_done = False
            self._be_patient()
            while not self._is_done:
                before = self._offset
                self._was_over = not await self._is_running()
                async for piece in self._pieces_at_hand():
                    yield piece
                if not self._is_done and self._offset == before:
                    await self._wait_for_node()
            if not self._follow or not await self._has_another():
                return

    async def _find_attempt(self) -> bool:
        """False: there is none, and none to wait for."""
        while not self._attempt:
            seen = await self._source.look(self._task_id)
            if seen is None:
                # So old that only its output is left here.
                stored = await self._source.stored(self._task_id, 0)
                self._attempt = attempt_of(stored.attempt) if stored else 0
                return stored is not None
            self._attempt = seen.attempt
            if not self._attempt:
                if seen.status.is_final or not self._follow:
                    return False
                await self._source.wait_for_change(self._task_id)
        return True

    async def _pieces_at_hand(self) -> AsyncIterator[bytes]:
        """From the store if it is there, else from the agent if it is connected, else nothing."""
        stored = await self._source.stored(self._task_id, self._attempt)
        if stored is not None:
            self._is_done = True
            yield self._rest_of(stored)
            return
        place = await self._place()
        if place is None:
            # A place is forgotten when the output is stored: perhaps between these two looks.
            stored = await self._source.stored(self._task_id, self._attempt)
            if stored is not None:
                self._is_done = True
                yield self._rest_of(stored)
            return
        if not self._source.is_attached(place.node_id):
            return
        try:
            async for offset, piece in self._source.fetch(
                place, self._offset, self._tail_bytes, follow=self._follow
            ):
                self._offset, self._tail_bytes = offset, 0
                yield piece
            self._is_done = self._source.is_attached(place.node_id)
            self._be_patient()  # the node was there until now, however long the task has run
        except OutputUnavailable:
            # It has not come there yet. Or the agent let go of it: stored a moment ago, or nothing to store.
            stored = await self._source.stored(self._task_id, self._attempt)
            if stored is not None:
                yield self._rest_of(stored)
            # What ended only after the agent was asked may have written since: then it is asked again.
            is_all = self._was_over or (not self._follow and await self._is_running())
            self._is_done = is_all or stored is not None

    async def _is_running(self) -> bool:
        seen = await self._source.look(self._task_id)
        return seen is not None and seen.attempt == self._attempt and seen.place is not None

    async def _place(self) -> Place | None:
        seen = await self._source.look(self._task_id)
        if seen is not None and seen.attempt == self._attempt and seen.place is not None:
            return seen.place
        return self._source.place(self._task_id, self._attempt)

    def _has_settled(self) -> bool:
        """Whether its node has been back for long enough to have sent what it had."""
        now = asyncio.get_running_loop().time()
        self._back_since = self._back_since or now
        return now >= self._back_since + SETTLE_S

    def _be_patient(self) -> None:
        self._give_up_at = asyncio.get_running_loop().time() + _PATIENCE_S

    async def _wait_for_node(self) -> None:
        is_patient = self._follow and asyncio.get_running_loop().time() < self._give_up_at
        seen = await self._source.look(self._task_id)
        is_current = seen is not None and seen.attempt == self._attempt
        if seen is not None and is_current and seen.status is TaskStatus.RUNNING:
            self._was_running = True
            if is_patient:
                await self._source.wait_for_change(self._task_id)
                return
            raise OutputUnavailable(f"node {seen.node_id} is not connected, and its output is there")
        if not self._was_over:
            return  # it ended just now: look again, this time at all it has written
        node_id = seen.node_id if seen is not None and is_current else None
        is_there = node_id is not None and self._source.is_attached(node_id)
        if self._was_running and is_patient and not (is_there and self._has_settled()):
            # It ended under our eyes while its node was away: its last bytes may be on their way to the store.
            await self._source.wait_for_change(self._task_id)
            return
        if is_there:
            self._is_done = True  # its node has nothing to send: it wrote nothing
            return
        if seen is not None and seen.attempt < self._attempt:
            raise OutputUnavailable(f"there was no attempt {self._attempt}, the latest is {seen.attempt}")
        where = f"node {node_id} is not connected, and" if node_id else "its node is not known here, and"
        raise OutputUnavailable(f"{where} nothing of attempt {self._attempt} was stored")

    async def _has_another(self) -> bool:
        """The attempt has ended for its agent. Wait for its end to be journaled, and see whether another one comes."""
        if self._only_attempt:
            return False
        while True:
            seen = await self._source.look(self._task_id)
            if seen is None or seen.status.is_final:
                return False
            if seen.attempt > self._attempt:
                self._attempt, self._offset, self._tail_bytes = seen.attempt, 0, 0
                return True
            await self._source.wait_for_change(self._task_id)

    def _rest_of(self, stored: AttemptOutput) -> bytes:
        content = stored.content
        if self._tail_bytes:
            content = content[-self._tail_bytes :]
        elif self._offset > stored.offset:
            content = content[self._offset - stored.offset :]
        self._offset = stored.offset + len(stored.content)
        return content
