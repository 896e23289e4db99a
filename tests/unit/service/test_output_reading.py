"""A reader among agent, store and journal, each of which moves on between any two of its looks."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from dgpu.core.model.ids import LeaseId, NodeId, TaskId
from dgpu.core.model.task import TaskStatus
from dgpu.service.task_output.reading import OutputUnavailable, Place, Reading, Seen
from dgpu.service.task_output.stored import StoredOutput

pytestmark = pytest.mark.timeout(20)

TASK = TaskId(7)
NODE = NodeId("n1")
PLACE = Place(LeaseId(3), NODE)
TEXT = b"all it has written\n"


class QuickTask:
    """A task that writes a line and ends. `ends_during` and `stored_during` name the look after which that happens."""

    def __init__(self, *, ends_during: str = "", stored_during: str = "") -> None:
        self.is_over = self.is_stored = False
        self._ends_during = ends_during
        self._stored_during = stored_during

    def _move_on(self, look: str) -> None:
        self.is_over = self.is_over or look == self._ends_during
        if look == self._stored_during:
            self.is_over = self.is_stored = True

    async def look(self, task_id: TaskId) -> Seen | None:
        assert task_id == TASK
        status = TaskStatus.SUCCESS if self.is_over else TaskStatus.RUNNING
        return Seen(status, 1, None if self.is_over else PLACE, NODE)

    async def stored(self, task_id: TaskId, attempt: int) -> StoredOutput | None:
        found = None
        if self.is_stored:
            found = StoredOutput(
                task_id=task_id,
                attempt=attempt,
                lease_id=PLACE.lease_id,
                node_id=NODE,
                end=len(TEXT),
                kept_until_ms=0,
                ranges=((0, len(TEXT)),),
            )
        self._move_on("stored")
        return found

    async def piece(self, stored: StoredOutput, offset: int) -> tuple[int, bytes] | None:
        return (offset, TEXT[offset:]) if offset < len(TEXT) else None

    def place(self, task_id: TaskId, attempt: int) -> Place | None:
        return None if self.is_stored or (task_id, attempt) != (TASK, 1) else PLACE

    def is_attached(self, node_id: NodeId) -> bool:
        return node_id == NODE

    async def fetch(
        self, place: Place, offset: int, tail_bytes: int = 0, *, length: int = 0, follow: bool = False
    ) -> AsyncIterator[tuple[int, bytes]]:
        del place, tail_bytes, length, follow
        is_there = self.is_over and not self.is_stored
        self._move_on("fetch")
        if not is_there:
            raise OutputUnavailable("this node has no output of that attempt")
        yield offset, TEXT[offset:]

    async def wait_for_change(self, task_id: TaskId) -> None:
        self._move_on("wait")


async def read(task: QuickTask, *, attempt: int = 0, follow: bool = True) -> bytes:
    reading = Reading(task, TASK, attempt, 0, follow=follow)
    return b"".join([piece async for piece in reading.pieces()])


@pytest.mark.parametrize("follow", [True, False])
@pytest.mark.parametrize("attempt", [0, 1])
async def test_what_is_stored_between_two_looks_is_read(attempt: int, follow: bool) -> None:
    task = QuickTask(stored_during="stored")
    assert await read(task, attempt=attempt, follow=follow) == TEXT


@pytest.mark.parametrize("follow", [True, False])
async def test_a_task_that_starts_and_ends_while_its_agent_is_asked_keeps_its_words(follow: bool) -> None:
    assert await read(QuickTask(ends_during="fetch"), follow=follow) == TEXT


@pytest.mark.parametrize("follow", [True, False])
async def test_a_task_that_is_stored_while_its_agent_is_asked_keeps_its_words(follow: bool) -> None:
    assert await read(QuickTask(stored_during="fetch"), follow=follow) == TEXT


async def test_a_follower_waits_for_a_task_that_has_not_come_to_its_agent_yet() -> None:
    assert await read(QuickTask(ends_during="wait")) == TEXT


async def test_an_attempt_that_never_was_is_named() -> None:
    task = QuickTask()
    task.is_over = True
    with pytest.raises(OutputUnavailable, match="there was no attempt 9, the latest is 1"):
        await read(task, attempt=9, follow=False)


class LongTask(QuickTask):
    """Ended, and stored but for its middle. `on_node` are the offsets at which its node still has a piece."""

    LINES = b"".join(b"line %04d\n" % number for number in range(100))  # ten bytes each

    def __init__(self, *, attached: bool = True, on_node: tuple[tuple[int, int], ...] = ()) -> None:
        super().__init__()
        self.is_over = self.is_stored = True
        self._attached = attached
        self._on_node = on_node

    async def stored(self, task_id: TaskId, attempt: int) -> StoredOutput | None:
        return StoredOutput(
            task_id=task_id,
            attempt=attempt,
            lease_id=PLACE.lease_id,
            node_id=NODE,
            end=len(self.LINES),
            kept_until_ms=1_700_000_000_000,
            ranges=((0, 25), (985, 1_000)),
        )

    async def piece(self, stored: StoredOutput, offset: int) -> tuple[int, bytes] | None:
        for begin, end in stored.ranges:
            if offset < end:
                return max(begin, offset), self.LINES[max(begin, offset) : end]
        return None

    def is_attached(self, node_id: NodeId) -> bool:
        return self._attached

    async def fetch(
        self, place: Place, offset: int, tail_bytes: int = 0, *, length: int = 0, follow: bool = False
    ) -> AsyncIterator[tuple[int, bytes]]:
        assert (place.task_id, place.attempt, tail_bytes, follow) == (TASK, 1, 0, False)
        if not self._on_node:
            raise OutputUnavailable("this node has no output of that attempt")
        for begin, end in self._on_node:
            if offset < end:
                begin = max(begin, offset)  # noqa: PLW2901 - from where it was asked for
                yield begin, self.LINES[begin : min(end, offset + length)]


HEAD, TAIL = LongTask.LINES[:25], LongTask.LINES[-10:]


async def test_what_the_store_left_out_comes_from_the_node() -> None:
    assert await read(LongTask(on_node=((0, 300), (300, 1_000))), follow=False) == LongTask.LINES
    assert await read(LongTask(on_node=((0, 1_000),)), follow=True) == LongTask.LINES


async def test_without_its_node_a_line_says_what_is_missing_and_where_it_is() -> None:
    """And the first line behind the gap is a whole one."""
    where = b"the whole output is on node n1 until 2023-11-14T22:13:20"
    text = await read(LongTask(attached=False), follow=False)
    head, _, rest = text.partition(b"\n[dgpu: 965 bytes left out here; ")
    assert head == HEAD
    assert rest.startswith(where)
    assert rest.endswith(b", but the node is not connected]\n" + TAIL)


async def test_a_node_that_no_longer_has_it_is_named() -> None:
    text = await read(LongTask(), follow=False)
    assert text == HEAD + b"\n[dgpu: 965 bytes left out here; node n1 no longer has them]\n" + TAIL


async def test_a_node_that_has_only_parts_of_it_gives_those() -> None:
    lines = LongTask.LINES
    text = await read(LongTask(on_node=((0, 100), (905, 1_000))), follow=False)
    gap = b"[dgpu: 810 bytes left out here; node n1 kept no more of this attempt]\n"
    assert text == lines[:100] + gap + lines[910:]
