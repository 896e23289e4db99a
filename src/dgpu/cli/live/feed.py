"""The data of the screen: nodes and GPUs from the board's stream, tasks by requests after a change.

If the scheduler has no free stream, everything is polled, less often the more a poll costs.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from datetime import UTC, datetime

import msgspec

from dgpu.cli.live.board import Board
from dgpu.cli.live.task_rows import TaskRow, task_rows
from dgpu.client.asynchronous import AsyncClient
from dgpu.client.errors import DgpuError, NotFound, Unreachable
from dgpu.client.stream import ServerEvent
from dgpu.wire.cluster_answers import GpuList, NodeAnswer, QuotaAnswer
from dgpu.wire.scheduler_answers import SchedulerList

MAX_TASKS = 1_000  # of the running and of the waiting tasks: one page of the scheduler
MAX_OF_ARRAY = 200  # running tasks of an opened array, and as many waiting ones
MAX_REASONS = 200  # of waiting tasks; each reason may cost the scheduler a scan of its nodes
LEAST_PAUSE_SECONDS = 1.0
# A picture of 16,000 GPUs costs the scheduler's loop a tenth of a second. A viewer may take at most a twentieth of
# its time, so a slow picture is requested less often.
PAUSE_PER_COST = 20
LONGEST_PAUSE_SECONDS = 15.0
TASKS_AGE_SECONDS = 5.0  # durations and reasons change without an event
SILENCE_SECONDS = 15.0  # a stream sends a keep-alive every 5 s


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster at one time."""

    at: datetime
    nodes: Sequence[NodeAnswer]
    gpus: GpuList
    tasks: Sequence[TaskRow]  # running tasks by id, then waiting ones in queue order; an array is one row
    running: int  # all running tasks, shown or not
    waiting: int
    quota: QuotaAnswer
    pause_seconds: float = 0.0  # until the next request; a stream needs none
    isolation: str = ""  # as in WhoAmI
    schedulers: SchedulerList | None = None  # None: an older scheduler does not tell

    @property
    def hidden_tasks(self) -> int:
        return max(0, self.running + self.waiting - sum(row.tasks for row in self.tasks))


class Tasks(msgspec.Struct, frozen=True, kw_only=True):
    rows: Sequence[TaskRow]
    running: int
    waiting: int
    cost_seconds: float
    schedulers: SchedulerList | None = None


async def take_tasks(client: AsyncClient, opened: Iterable[str] = ()) -> Tasks:
    """`opened`: arrays whose tasks are listed below their row."""
    began = time.monotonic()
    running = await client.page(status="running", limit=MAX_TASKS, fold="true")
    queue = await client.queue(limit=MAX_TASKS)
    newest = await client.page(status="pending", limit=MAX_REASONS, fold="true")
    inside = {
        array_id: [
            *(await client.page(array=array_id, status="running", limit=MAX_OF_ARRAY)).tasks,
            *(await client.page(array=array_id, status="pending", limit=MAX_OF_ARRAY)).tasks,
        ]
        for array_id in opened
    }
    return Tasks(
        rows=task_rows(running.tasks, queue.queue, newest.tasks, inside),
        running=running.total,
        waiting=queue.total,
        schedulers=await take_schedulers(client),
        cost_seconds=time.monotonic() - began,
    )


async def take_schedulers(client: AsyncClient) -> SchedulerList | None:
    try:
        return await client.schedulers()
    except NotFound:
        return None


async def take_picture(client: AsyncClient, opened: Iterable[str] = ()) -> Picture:
    began = time.monotonic()
    nodes = await client.nodes()
    gpus = await client.gpus()
    quota = await client.quota()
    tasks = await take_tasks(client, opened)
    return Picture(
        at=datetime.now(UTC),
        nodes=nodes.nodes,
        gpus=gpus,
        tasks=tasks.rows,
        running=tasks.running,
        waiting=tasks.waiting,
        quota=quota,
        isolation=nodes.isolation,
        schedulers=tasks.schedulers,
        pause_seconds=_pause(time.monotonic() - began),
    )


def _pause(cost_seconds: float) -> float:
    return min(LONGEST_PAUSE_SECONDS, max(LEAST_PAUSE_SECONDS, PAUSE_PER_COST * cost_seconds))


class Lost(msgspec.Struct, frozen=True, kw_only=True):
    """No answer, or an unexpected one."""

    since: datetime
    words: str
    pause_seconds: float


class Feed:
    """Yields one picture after the other.

    An unreachable scheduler is polled less often, also at the address that `up` recorded.
    """

    def __init__(self, client: AsyncClient, elsewhere: Callable[[], AsyncClient | None]) -> None:
        self.client = client
        self.is_streaming = True
        self._elsewhere = elsewhere
        self._lost_since: datetime | None = None
        self._failures = 0
        self._at_once = asyncio.Event()
        self._events: AsyncGenerator[ServerEvent] | None = None
        self._board: Board | None = None
        self._tasks: Tasks | None = None
        self._tasks_due_s = 0.0
        self.opened: set[str] = set()  # arrays

    def hurry(self) -> None:
        """An action was sent: update now."""
        self._tasks_due_s = 0.0
        self._at_once.set()

    async def next(self) -> Picture | Lost:
        try:
            picture = await (self._beat() if self.is_streaming else take_picture(self.client, self.opened))
        except DgpuError as error:
            await self.rest()
            if self._failures == 0 and self.is_streaming and _has_no_stream(error):
                self.is_streaming = False
                return await self.next()
            await self._look_elsewhere()
            self._failures += 1
            self._lost_since = self._lost_since or datetime.now(UTC)
            pause = min(5.0, LEAST_PAUSE_SECONDS * self._failures)
            return Lost(since=self._lost_since, words=str(error), pause_seconds=pause)
        self._failures, self._lost_since = 0, None
        return picture

    async def pause(self, seconds: float) -> None:
        self._at_once.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._at_once.wait(), seconds)

    async def rest(self) -> None:
        """Closes the stream; the next picture opens it again."""
        self._board = self._tasks = None
        if self._events is not None:
            events, self._events = self._events, None
            await events.aclose()

    async def _beat(self) -> Picture:
        board = await self._next_board()
        now_s = time.monotonic()
        if self._tasks is None or now_s >= self._tasks_due_s:
            self._tasks = await take_tasks(self.client, self.opened)
            self._tasks_due_s = time.monotonic() + max(TASKS_AGE_SECONDS, _pause(self._tasks.cost_seconds))
        return Picture(
            at=datetime.now(UTC),
            nodes=list(board.nodes),
            gpus=board.gpu_list(),
            tasks=self._tasks.rows,
            running=board.running,
            waiting=board.waiting,
            quota=board.quota(),
            isolation=board.isolation,
            schedulers=self._tasks.schedulers,
        )

    async def _next_board(self) -> Board:
        while True:
            self._events = self._events or self.client.board_events()
            try:
                event = await asyncio.wait_for(anext(self._events), SILENCE_SECONDS)
            except TimeoutError:
                raise Unreachable(f"The scheduler at {self.client.url} is silent.") from None
            except StopAsyncIteration:
                raise Unreachable(f"The scheduler at {self.client.url} ended the stream.") from None
            if event.type == "snapshot":
                self._board = Board(event.facts, (await self.client.nodes()).nodes)
                self._tasks_due_s = 0.0
                return self._board
            if event.type == "delta" and self._board is not None:
                if not self._board.apply(event.facts):
                    await self.rest()
                    continue
                if event.facts.get("changed"):
                    self._bring_forward()
                return self._board

    def _bring_forward(self) -> None:
        """Tasks changed: request them again, limited by the cost of the last request."""
        cost = 0.0 if self._tasks is None else self._tasks.cost_seconds
        self._tasks_due_s = min(self._tasks_due_s, time.monotonic() + _pause(cost) - LEAST_PAUSE_SECONDS)

    async def _look_elsewhere(self) -> None:
        """A restarted scheduler may have another port."""
        if (other := self._elsewhere()) is not None:
            before, self.client = self.client, other
            await before.close()


def _has_no_stream(error: DgpuError) -> bool:
    """True for an older scheduler, or one with too many open streams."""
    return error.problem is not None and error.problem.status in {404, 503}
