"""Threads for calls that may hang: dead mounts, broken disks. Neither the loop nor the exit waits for them."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class Busy(Exception):  # noqa: N818 - it names what the threads are
    """Too many calls are in progress."""


class DaemonPool:
    """`threading.Thread(daemon=True)`, unlike the threads of an executor: a call that never returns ends with the
    process.
    """

    def __init__(self, name: str, *, threads: int, max_waiting: int) -> None:
        self._name = name
        self._max_threads = threads
        self._max_waiting = max_waiting
        self._work: queue.SimpleQueue[tuple[asyncio.Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
        self._threads = 0
        self._under_way = 0  # changed only by the loop

    async def run(self, work: Callable[[], T]) -> T:
        """Raises Busy or the error of the call. Cancelling drops the result but does not stop the call."""
        if self._under_way >= self._max_threads + self._max_waiting:
            raise Busy
        if self._under_way >= self._threads < self._max_threads:
            self._threads += 1
            threading.Thread(target=self._serve, name=f"{self._name}-{self._threads}", daemon=True).start()
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._under_way += 1
        self._work.put((future, work))
        return await future

    def _serve(self) -> None:
        while True:
            future, work = self._work.get()
            result: Any = None
            failure: BaseException | None = None
            try:
                result = work()
            except BaseException as error:  # noqa: BLE001 - it is the caller's
                failure = error
            with contextlib.suppress(RuntimeError):  # the loop has ended
                future.get_loop().call_soon_threadsafe(self._settle, future, result, failure)

    def _settle(self, future: asyncio.Future[Any], result: Any, failure: BaseException | None) -> None:
        self._under_way -= 1
        if future.done():
            return
        if failure is None:
            future.set_result(result)
        else:
            future.set_exception(failure)
