"""Reads the output of a task for one reader: from agent or store, one attempt or several.

Bytes that the store left out come from the node, while it is connected and still has them. Where bytes are missing, a
line in the output gives their number and their location.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Protocol

import msgspec

from dgpu.core.model.ids import NO_TASK, LeaseId, NodeId, TaskId
from dgpu.core.model.task import TaskStatus
from dgpu.service.task_output.byte_ranges import Range
from dgpu.service.task_output.stored import StoredOutput
from dgpu.wire.answers import instant
from dgpu.wire.ranks import attempt_of, run_number

SETTLE_S = 3.0  # time for a returning node to send its output
_PATIENCE_S = 30.0  # time for a node to come back while its task is followed
_MAX_LINE_BYTES = 64 << 10  # after a gap: a longer line is truncated


class OutputUnavailable(Exception):  # noqa: N818 - the name states the failure
    """The text gives the reason, for display."""


class NodeSilent(OutputUnavailable):
    """A connected node does not answer."""


class Place(msgspec.Struct, frozen=True, gc=False):
    lease_id: LeaseId
    node_id: NodeId
    task_id: TaskId = NO_TASK
    attempt: int = 0  # wire.ranks.run_number


class Seen(msgspec.Struct, frozen=True):
    """The facts about a task that matter for its output."""

    status: TaskStatus
    attempt: int
    place: Place | None  # of the attempt, while it runs
    node_id: NodeId | None  # of the attempt


class OutputState(msgspec.Struct, frozen=True, kw_only=True):
    """Where the bytes of an attempt are."""

    stored: StoredOutput | None = None  # None: nothing is stored here
    node_id: NodeId | None = None  # of the attempt, if known
    is_connected: bool = False  # refers to node_id

    @property
    def missing(self) -> tuple[Range, ...]:
        """The bytes that are not stored here."""
        return self.stored.missing if self.stored is not None else ()


class Source(Protocol):
    async def look(self, task_id: TaskId, rank: int = 0) -> Seen | None: ...

    async def stored(self, task_id: TaskId, attempt: int) -> StoredOutput | None: ...

    async def piece(self, stored: StoredOutput, offset: int) -> tuple[int, bytes] | None: ...

    def place(self, task_id: TaskId, attempt: int) -> Place | None: ...

    def is_attached(self, node_id: NodeId) -> bool: ...

    def fetch(
        self, place: Place, offset: int, tail_bytes: int = 0, *, length: int = 0, follow: bool = False
    ) -> AsyncIterator[tuple[int, bytes]]: ...

    async def wait_for_change(self, task_id: TaskId) -> None: ...


class RankSource:
    """The output of a rank other than the first, read as if it were the only one."""

    def __init__(self, source: Source, rank: int) -> None:
        self._source = source
        self._rank = rank
        self.is_attached = source.is_attached
        self.fetch = source.fetch
        self.piece = source.piece
        self.wait_for_change = source.wait_for_change

    async def look(self, task_id: TaskId, rank: int = 0) -> Seen | None:
        return await self._source.look(task_id, rank or self._rank)

    async def stored(self, task_id: TaskId, attempt: int) -> StoredOutput | None:
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
        self._offset = 0  # after the last byte read
        self._ends_a_line = True  # refers to the bytes read so far
        self._is_done = False  # with the attempt
        self._was_running = False  # the attempt ran when this reader waited for its node
        self._was_over = False  # the attempt had ended before this reader looked for its output
        self._give_up_at = 0.0
        self._back_since = 0.0

    async def pieces(self) -> AsyncIterator[bytes]:
        async for piece in self._all_pieces():
            if piece:
                self._ends_a_line = piece.endswith(b"\n")
            yield piece

    async def _all_pieces(self) -> AsyncIterator[bytes]:
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
        """False: there is no attempt, and none is expected."""
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
        """Reads from the store if the output is there, else from the agent if it is connected, else nothing."""
        stored = await self._source.stored(self._task_id, self._attempt)
        place = None if stored is not None else await self._place()
        if stored is None and place is None:
            # A place is forgotten when the output is stored, perhaps between these two lookups.
            stored = await self._source.stored(self._task_id, self._attempt)
        if stored is not None:
            async for piece in self._from_store(stored):
                yield piece
            self._is_done = True
            return
        if place is None or not self._source.is_attached(place.node_id):
            return
        try:
            async for piece in self._from_node(place, follow=self._follow):
                yield piece
            self._is_done = self._source.is_attached(place.node_id)
            self._be_patient()  # the node was connected until now, however long the task has run
        except NodeSilent:
            raise
        except OutputUnavailable:
            # The output is not in the store yet. Or the agent dropped it: stored a moment ago, or empty.
            stored = await self._source.stored(self._task_id, self._attempt)
            if stored is not None:
                async for piece in self._from_store(stored):
                    yield piece
            # An attempt that ended after the request to the agent may have written more: then the agent is asked again.
            is_all = self._was_over or (not self._follow and await self._is_running())
            self._is_done = is_all or stored is not None

    async def _from_node(
        self, place: Place, *, length: int = 0, follow: bool = False
    ) -> AsyncIterator[bytes]:
        """A node deletes the middle of an output above its limit. A line in the output marks the gap."""
        end = self._offset + length
        source = self._source.fetch(place, self._offset, self._tail_bytes, length=length, follow=follow)
        async for begin, piece in source:
            skipped = 0
            if begin > self._offset and not self._tail_bytes:
                skipped = _to_next_line(piece)
                left_out = begin + skipped - self._offset
                yield self._line(left_out, f"node {place.node_id} kept no more of this attempt")
            self._offset, self._tail_bytes = begin + len(piece), 0
            yield piece[skipped : end - begin] if length else piece[skipped:]

    async def _from_store(self, stored: StoredOutput) -> AsyncIterator[bytes]:
        if self._tail_bytes:
            self._offset, self._tail_bytes = max(0, stored.end - self._tail_bytes), 0
        while self._offset < stored.end:
            found = await self._source.piece(stored, self._offset)
            begin, piece = found if found is not None else (stored.end, b"")
            why = ""
            if begin > self._offset:
                try:
                    async for between in self._across(stored, begin):
                        yield between
                except NodeSilent:
                    why = f"{self._where(stored)}, but the node does not answer"
                except OutputUnavailable:
                    why = f"node {stored.node_id} no longer has them"
            skipped = 0
            if begin > self._offset:
                skipped = _to_next_line(piece)
                yield self._line(begin + skipped - self._offset, why or self._where(stored))
            self._offset = begin + len(piece)
            if piece[skipped:]:
                yield piece[skipped:]

    async def _across(self, stored: StoredOutput, until: int) -> AsyncIterator[bytes]:
        """The bytes that the store left out, from the node, while the node still has them."""
        place = Place(stored.lease_id, stored.node_id, stored.task_id, stored.attempt)
        before = -1
        while before < self._offset < until and stored.node_id and self._source.is_attached(stored.node_id):
            before = self._offset
            async for piece in self._from_node(place, length=until - self._offset):
                yield piece

    def _line(self, left_out: int, where: str) -> bytes:
        start = "" if self._ends_a_line else "\n"
        return f"{start}[dgpu: {left_out:,} bytes left out here; {where}]\n".encode()

    def _where(self, stored: StoredOutput) -> str:
        if not stored.kept_until_ms or not stored.node_id:
            return "they are no longer stored anywhere"
        until = f"the whole output is on node {stored.node_id} until {instant(stored.kept_until_ms)}"
        return (
            until if self._source.is_attached(stored.node_id) else f"{until}, but the node is not connected"
        )

    async def _is_running(self) -> bool:
        seen = await self._source.look(self._task_id)
        return seen is not None and seen.attempt == self._attempt and seen.place is not None

    async def _place(self) -> Place | None:
        seen = await self._source.look(self._task_id)
        if seen is not None and seen.attempt == self._attempt and seen.place is not None:
            return seen.place
        return self._source.place(self._task_id, self._attempt)

    def _has_settled(self) -> bool:
        """Whether the node has been back long enough to have sent its output."""
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
            raise OutputUnavailable(f"node {seen.node_id} is not connected, and the output is on that node")
        if not self._was_over:
            return  # it ended just now: read again, this time everything it has written
        node_id = seen.node_id if seen is not None and is_current else None
        is_there = node_id is not None and self._source.is_attached(node_id)
        if self._was_running and is_patient and not (is_there and self._has_settled()):
            # It ended during this read while its node was away: its last bytes may be on the way to the store.
            await self._source.wait_for_change(self._task_id)
            return
        if is_there:
            self._is_done = True  # its node has nothing to send: the attempt wrote nothing
            return
        if seen is not None and seen.attempt < self._attempt:
            raise OutputUnavailable(f"there was no attempt {self._attempt}, the latest is {seen.attempt}")
        where = f"node {node_id} is not connected, and" if node_id else "its node is unknown here, and"
        raise OutputUnavailable(f"{where} nothing of attempt {self._attempt} was stored")

    async def _has_another(self) -> bool:
        """The attempt has ended for its agent. Waits until the end is journaled, and returns whether another attempt
        follows.
        """
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


def _to_next_line(piece: bytes) -> int:
    """The bytes that belong to a line whose beginning is missing; 0 if no other line follows."""
    place = piece.find(b"\n", 0, _MAX_LINE_BYTES) + 1
    return place if place < len(piece) else 0
