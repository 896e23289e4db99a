"""The thread that makes groups durable, so that a slow disk never stops the loop."""

from __future__ import annotations

import asyncio
import os
import queue
import threading
import time
from collections.abc import Callable

import structlog

from dgpu.core.rejections import JournalUnavailable, StorageFull
from dgpu.journal.engine import EngineUnavailable, FenceLost
from dgpu.journal.errors import JournalError, NotWritten
from dgpu.journal.journal import Journal, Sighting
from dgpu.journal.mark import AcknowledgedMark, Mark
from dgpu.service.machine.inputs import NotStored
from dgpu.service.machine.outputs import Append

EXIT_JOURNAL_BROKEN = 74  # as in sysexits: input/output error

_ROOM_EVERY_S = 0.5
_LOOK_EVERY_S = 2.0
_AGAIN_S = 1.0

_log = structlog.get_logger("dgpu.journal")


class JournalThread:
    """At most one append, one search for room and one check of files are in progress, so the queue needs no bound.

    The callbacks are called in the loop.
    """

    def __init__(
        self,
        journal: Journal,
        loop: asyncio.AbstractEventLoop,
        *,
        on_committed: Callable[[int, float], None],
        on_not_stored: Callable[[NotStored], None],
        on_sighting: Callable[[Sighting], None],
        on_fenced: Callable[[str], None] = lambda _: None,
        mark: AcknowledgedMark | None = None,
    ) -> None:
        self._journal = journal
        self._loop = loop
        self._on_committed = on_committed
        self._on_not_stored = on_not_stored
        self._on_sighting = on_sighting
        self._on_fenced = on_fenced
        self._mark = mark
        self._queue: queue.SimpleQueue[Append | str] = queue.SimpleQueue()
        self._asked: dict[str, float] = {}  # "room" or "look", and the time
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    def append(self, group: Append) -> None:
        self._queue.put(group)

    def make_room(self) -> None:
        """Has no effect while an earlier attempt is in progress, or right after one."""
        self._ask("room", _ROOM_EVERY_S)

    def look(self) -> None:
        """Checks that all files are in place. Has no effect right after an earlier check."""
        self._ask("look", _LOOK_EVERY_S)

    def begin_segment(self) -> None:
        self._ask("segment", 0.0)

    def stop(self) -> None:
        """Stops after the queued work. Blocks until then."""
        self._stopping.set()
        self._queue.put("stop")
        self._thread.join()

    def _ask(self, what: str, every_s: float) -> None:
        now_s = time.monotonic()
        if now_s - self._asked.get(what, -every_s) >= every_s:
            self._asked[what] = float("inf")
            self._queue.put(what)

    def _run(self) -> None:
        try:
            while (item := self._queue.get()) != "stop":
                if isinstance(item, Append):
                    self._append(item)
                    continue
                if item == "room":
                    self._journal.prepare()
                elif item == "segment":
                    self._journal.begin_segment()
                else:
                    self._loop.call_soon_threadsafe(self._on_sighting, self._journal.look())
                self._asked[item] = time.monotonic()
        except BaseException as error:  # noqa: BLE001 - after any error, nothing may be acknowledged
            end_process(f"the journal cannot be written: {error}")

    def _append(self, group: Append) -> None:
        while True:
            began_s = time.perf_counter()
            try:
                self._journal.append(group.epoch, group.index, group.payload)
            except NotWritten as error:
                if self._taken_back(group, error) or self._stopping.wait(_AGAIN_S):
                    return
            except (FenceLost, EngineUnavailable) as error:
                # The engine decides alone whether the group is stored. Nothing is answered.
                self._loop.call_soon_threadsafe(self._on_fenced, str(error))
                return
            else:
                took_s = time.perf_counter() - began_s
                if self._mark is not None:
                    self._mark.note(Mark(index=group.index, epoch=group.epoch, last_task=group.last_task))
                self._loop.call_soon_threadsafe(self._on_committed, group.index, took_s)
                return

    def _taken_back(self, group: Append, error: NotWritten) -> bool:
        """False: stored groups cannot be read either, so the group stays in flight and is tried again."""
        _log.error("journal_not_written", index=group.index, reason=str(error))
        try:
            state = self._journal.committed_state()
        except (JournalError, OSError) as unreadable:
            _log.error("journal_not_readable", reason=str(unreadable))
            self._loop.call_soon_threadsafe(self._on_sighting, Sighting(trouble=str(error)))
            return False
        refusal = JournalUnavailable(reason=str(error)) if error.gone else StorageFull()
        not_stored = NotStored(index=group.index, state=state, refusal=refusal)
        self._loop.call_soon_threadsafe(self._on_not_stored, not_stored)
        return True


def end_process(reason: str) -> None:
    """Ends the process at once: no clean-up may acknowledge or write anything. The next start reads the journal."""
    _log.critical("scheduler_stopped", reason=reason)
    os._exit(EXIT_JOURNAL_BROKEN)
