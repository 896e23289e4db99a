"""A reader among agent, store and journal, each of which moves on between any two of its looks."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from dgpu.core.ids import LeaseId, NodeId, TaskId
from dgpu.core.task import TaskStatus
from dgpu.service.logstore import AttemptOutput
from dgpu.service.output_reading import OutputUnavailable, Place, Reading, Seen

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

    async def stored(self, task_id: TaskId, attempt: int) -> AttemptOutput | None:
        found = None
        if self.is_stored:
            found = AttemptOutput(
                task_id=task_id, attempt=attempt, lease_id=PLACE.lease_id, offset=0, content=TEXT
            )
        self._move_on("stored")
        return found

    def place(self, task_id: TaskId, attempt: int) -> Place | None:
        return None if self.is_stored or (task_id, attempt) != (TASK, 1) else PLACE

    def is_attached(self, node_id: NodeId) -> bool:
        return node_id == NODE

    async def fetch(
        self, place: Place, offset: int, tail_bytes: int, *, follow: bool
    ) -> AsyncIterator[tuple[int, bytes]]:
        del place, tail_bytes, follow
        is_there = self.is_over and not self.is_stored
        self._move_on("fetch")
        if not is_there:
            raise OutputUnavailable("this node has no output of that attempt")
        yield len(TEXT), TEXT[offset:]

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
