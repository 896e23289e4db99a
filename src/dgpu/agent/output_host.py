"""Executes the outputs of one node's courier: its stream, its files in a thread, its timer. No decisions."""

from __future__ import annotations

import asyncio
import collections
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import grpc.aio
import structlog

from dgpu.agent.keeper_settings import boot_ms
from dgpu.agent.lifecycle_words import DropOutput, KeepOutput
from dgpu.agent.output_courier import NEVER_MS, OutputCourier
from dgpu.agent.output_shelf import OutputShelf
from dgpu.agent.output_words import (
    CallEnded,
    CallOpened,
    CourierInput,
    CourierOutput,
    FilesRead,
    MessageTaken,
    OutputReceived,
    OutputSettled,
    ReadFiles,
    SchedulerSaid,
    SendMessage,
    TimeCame,
)
from dgpu.agent.stream import OutputStream
from dgpu.core.model.ids import LeaseId, NodeId, TaskId

TIDY_SECONDS = 60.0


class OutputDesk:
    """The shelf of an agent and the thread that reads and writes its files."""

    def __init__(self, shelf: OutputShelf) -> None:
        self.shelf = shelf
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="output-files")
        self._tidying: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._tidying = asyncio.get_running_loop().create_task(self._tidy_for_ever())

    async def close(self) -> None:
        if self._tidying is not None:
            self._tidying.cancel()
        self._thread.shutdown(wait=False)

    def tidy(self) -> None:
        self._thread.submit(self.shelf.tidy)

    async def read(self, ask: ReadFiles, *, is_running: bool, run: tuple[TaskId, int] | None) -> FilesRead:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            self._thread, lambda: self.shelf.read(ask, is_running=is_running, run=run)
        )

    async def keep(self, settled: OutputSettled) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, self.shelf.keep, settled)

    async def _tidy_for_ever(self) -> None:
        while True:
            await asyncio.get_running_loop().run_in_executor(self._thread, self.shelf.tidy)
            await asyncio.sleep(TIDY_SECONDS)


class OutputHost:
    """For one node. `on_settled` is called for attempts whose output the scheduler no longer needs."""

    def __init__(
        self,
        *,
        node_id: NodeId,
        desk: OutputDesk,
        is_running: Callable[[LeaseId], bool],
        run_of: Callable[[LeaseId], tuple[TaskId, int] | None],
        on_settled: Callable[[LeaseId], None],
    ) -> None:
        self._desk = desk
        self._is_running = is_running
        self._run_of = run_of
        self._on_settled = on_settled
        self._log = structlog.get_logger("dgpu.agent").bind(node=node_id)
        self._courier = OutputCourier(node_id=node_id, kept_ms=desk.shelf.max_age_ms)
        self._inbox: collections.deque[CourierInput] = collections.deque()
        self._working = False
        self._stream: OutputStream | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def keep(self, output: KeepOutput) -> None:
        """An attempt with output has ended."""
        if self._desk.shelf.waits(output.lease_id, output.output_bytes):
            self._desk.tidy()
        self._feed(output)

    def drop(self, output: DropOutput) -> None:
        self._desk.shelf.is_settled(output.lease_id)
        self._feed(output)

    def open(self, channel: grpc.aio.Channel, session_id: str) -> None:
        self._stream = OutputStream(
            channel,
            on_open=lambda: self._feed(CallOpened(session_id=session_id)),
            on_message=lambda message: self._feed(SchedulerSaid(message=message)),
            on_taken=lambda: self._feed(MessageTaken()),
            on_end=lambda: self._feed(CallEnded()),
        )

    def hang_up(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None
            self._feed(CallEnded())

    def close(self) -> None:
        self.hang_up()
        if self._timer is not None:
            self._timer.cancel()
        for task in list(self._tasks):
            task.cancel()

    def _feed(self, value: CourierInput) -> None:
        self._inbox.append(value)
        if self._working:
            return
        self._working = True
        try:
            while self._inbox:
                for output in self._courier.on_input(self._inbox.popleft(), boot_ms()):
                    self._carry_out(output)
        finally:
            self._working = False
        self._set_timer()

    def _carry_out(self, output: CourierOutput) -> None:
        match output:
            case SendMessage():
                if self._stream is not None:
                    self._stream.send(output.message)
            case ReadFiles():
                self._spawn(self._read(output))
            case OutputReceived():
                self._desk.shelf.is_received(output.lease_id)
            case OutputSettled():
                self._desk.shelf.is_settled(output.lease_id)
                if output.refused:
                    self._log.warning("output_refused", lease=output.lease_id, reason=output.refused)
                if output.is_whole:
                    self._on_settled(output.lease_id)
                else:
                    self._spawn(self._keep(output))

    async def _read(self, ask: ReadFiles) -> None:
        is_running = self._is_running(ask.lease_id)  # first: all earlier output is in the files
        self._feed(await self._desk.read(ask, is_running=is_running, run=self._run_of(ask.lease_id)))

    async def _keep(self, settled: OutputSettled) -> None:
        """Called before the lease is forgotten: then the runner deletes the remaining files."""
        await self._desk.keep(settled)
        self._on_settled(settled.lease_id)

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now_ms = boot_ms()
        wake_at_ms = self._courier.wake_at_ms(now_ms)
        if self._stream is not None and wake_at_ms < NEVER_MS:
            pause = max(0, wake_at_ms - now_ms) / 1_000 + 0.001
            self._timer = asyncio.get_running_loop().call_later(pause, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._feed(TimeCame())

    def _spawn(self, work: collections.abc.Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
