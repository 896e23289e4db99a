"""The one thread that makes groups durable, so that a slow disk never stops the loop."""

from __future__ import annotations

import asyncio
import os
import queue
import threading
import time
from collections.abc import Callable

import structlog

from dgpu.journal.journal import Journal
from dgpu.service.outputs import Append

EXIT_JOURNAL_BROKEN = 74  # as in sysexits: input/output error

_log = structlog.get_logger("dgpu.journal")


class JournalThread:
    """At most one append and one try for room are under way, so the queue needs no bound of its own."""

    def __init__(
        self,
        journal: Journal,
        loop: asyncio.AbstractEventLoop,
        on_committed: Callable[[int, float], None],
    ) -> None:
        self._journal = journal
        self._loop = loop
        self._on_committed = on_committed
        self._queue: queue.SimpleQueue[Append | str] = queue.SimpleQueue()
        self._making_room = False
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    def append(self, group: Append) -> None:
        self._queue.put(group)

    def make_room(self) -> None:
        """Without effect while an earlier try is under way."""
        if not self._making_room:
            self._making_room = True
            self._queue.put("room")

    def stop(self) -> None:
        """After what is queued. Blocks until then."""
        self._queue.put("stop")
        self._thread.join()

    def _run(self) -> None:
        try:
            while (item := self._queue.get()) != "stop":
                if isinstance(item, Append):
                    began_s = time.perf_counter()
                    self._journal.append(item.epoch, item.index, item.payload)
                    took_s = time.perf_counter() - began_s
                    self._loop.call_soon_threadsafe(self._on_committed, item.index, took_s)
                else:
                    self._journal.prepare()
                    self._making_room = False
        except BaseException as error:  # noqa: BLE001 - whatever it is, nothing may be acknowledged any more
            end_process(f"the journal cannot be written: {error}")


def end_process(reason: str) -> None:
    """At once: no clean-up may acknowledge or write anything. The next start reads what is durable."""
    _log.critical("scheduler_stopped", reason=reason)
    os._exit(EXIT_JOURNAL_BROKEN)
