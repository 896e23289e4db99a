"""Writes the output of calls to files, in a thread. Nothing is done for calls that print nothing."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dgpu.agent.chunks import ChunkWriter
from dgpu.agent.workers.words import CallOutputClosed, CloseCallOutput, DeleteCallOutput, WriteCallOutput

MAX_WAITING_BYTES = 4 << 20  # then workers are not read until the disk has caught up

OutputOrder = WriteCallOutput | CloseCallOutput | DeleteCallOutput


class CallOutputs:
    """For one node. `on_free` is called when workers may be read again."""

    def __init__(
        self,
        directory: Path,
        cap_bytes: int,
        *,
        on_closed: Callable[[CallOutputClosed], None],
        on_free: Callable[[], None],
    ) -> None:
        self._directory = directory
        self._cap_bytes = cap_bytes
        self._on_closed = on_closed
        self._on_free = on_free
        self._orders: list[OutputOrder] = []
        self._waiting_bytes = 0
        self._is_full = False
        self._thread: ThreadPoolExecutor | None = None  # made by the first call with output
        self._working: asyncio.Task[None] | None = None
        self._writers: dict[int, ChunkWriter] = {}  # of the thread

    def put(self, order: OutputOrder) -> bool:
        """False: the worker is not to be read until `on_free`."""
        self._orders.append(order)
        if isinstance(order, WriteCallOutput):
            self._waiting_bytes += len(order.data)
        if self._working is None:
            self._thread = self._thread or ThreadPoolExecutor(1, thread_name_prefix="call-output")
            self._working = asyncio.get_running_loop().create_task(self._work())
        self._is_full = self._is_full or self._waiting_bytes >= MAX_WAITING_BYTES
        return not self._is_full

    async def close(self) -> None:
        """Waits for the bytes that are on their way: the next agent continues behind them."""
        if self._working is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(self._working), 5)
        if self._thread is not None:
            self._thread.shutdown(wait=False)

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while self._orders:
            orders, self._orders = self._orders, []
            self._waiting_bytes = 0
            closed = await loop.run_in_executor(self._thread, self._carry_out, orders)
            for each in closed:
                self._on_closed(each)
            if self._is_full and self._waiting_bytes < MAX_WAITING_BYTES:
                self._is_full = False
                self._on_free()
        self._working = None

    # -- in the thread

    def _carry_out(self, orders: list[OutputOrder]) -> list[CallOutputClosed]:
        closed: list[CallOutputClosed] = []
        for order in orders:
            match order:
                case WriteCallOutput():
                    self._writer(order.lease_id).append(order.data, order.stream)
                case CloseCallOutput():
                    writer = self._writer(order.lease_id)
                    writer.close()
                    del self._writers[order.lease_id]
                    closed.append(
                        CallOutputClosed(
                            lease_id=order.lease_id,
                            output_bytes=writer.total_bytes,
                            lost_bytes=writer.dropped_bytes,
                        )
                    )
                case DeleteCallOutput():
                    for lease_id in order.lease_ids:
                        if (unfinished := self._writers.pop(lease_id, None)) is not None:
                            unfinished.close()
                        shutil.rmtree(self._directory / f"{lease_id:d}", ignore_errors=True)
        return closed

    def _writer(self, lease: int) -> ChunkWriter:
        """Continues after the output that an earlier agent has written."""
        found = self._writers.get(lease)
        if found is None:
            found = ChunkWriter.resume(self._directory / f"{lease:d}", self._cap_bytes)
            self._writers[lease] = found
        return found
