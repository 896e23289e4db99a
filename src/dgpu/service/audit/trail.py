"""Writes entries of the audit log that belong to no command: refusals, and changes outside the core."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import structlog

from dgpu.core.commands import RecordAudit
from dgpu.core.model.audit import AuditEntry
from dgpu.core.rejections import Rejection
from dgpu.service.access.table import Action
from dgpu.service.audit.repeats import Repeats
from dgpu.service.loop.answers import Answer
from dgpu.service.loop.runtime import Runtime

_LOOK_S = 5.0
_FLUSH_EVERY_MS = 1_000
_STOP_PATIENCE_S = 2.0
_END_OF_SESSION = Action.READ_SELF.value

_log = structlog.get_logger("dgpu.audit")


class AuditTrail:
    """All calls come from the event loop."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._repeats = Repeats()
        self._flushed_at = 0

    def note(self, entry: AuditEntry) -> asyncio.Future[Answer] | None:
        """None: an equal refusal was written within the last minute, and this one is counted. The end of a session,
        which any principal may repeat at will, is counted like a refusal.
        """
        if entry.code or entry.action == _END_OF_SESSION:
            written = self._repeats.take(entry, self._runtime.now_ms())
            return None if written is None else self._write(written)
        return self._write(entry)

    async def record(self, entry: AuditEntry) -> None:
        """Returns when the entry is durable or counted. A journal without room loses no answer."""
        writing = self.note(entry)
        if writing is not None:
            await asyncio.wait((writing,))

    async def flush(self) -> None:
        """Writes what is counted so far, so that a reader finds every attempt. At most once a second."""
        now = self._runtime.now_ms()
        if now - self._flushed_at >= _FLUSH_EVERY_MS:
            self._flushed_at = now
            await self.write_all()

    async def write_all(self) -> None:
        """Writes what is counted so far, now."""
        due = self._repeats.due(self._runtime.now_ms(), also_open=True)
        if writing := [self._write(entry) for entry in due]:
            await asyncio.wait(writing)

    async def tend(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            for entry in self._repeats.due(self._runtime.now_ms()):
                self._write(entry)

    def _write(self, entry: AuditEntry) -> asyncio.Future[Answer]:
        writing = self._runtime.execute(RecordAudit(entries=(entry,)))
        writing.add_done_callback(lambda done: self._written(entry, done))
        return writing

    def _written(self, entry: AuditEntry, done: asyncio.Future[Answer]) -> None:
        error = None if done.cancelled() else done.exception()
        if error is None and not done.cancelled() and not isinstance(done.result(), Rejection):
            return
        if entry.code or entry.action == _END_OF_SESSION:
            self._repeats.give_back(entry, self._runtime.now_ms())
        else:
            _log.error("audit_not_written", action=entry.action, user=entry.user, origin=entry.origin)


@contextlib.asynccontextmanager
async def audit_trail(runtime: Runtime) -> AsyncIterator[AuditTrail]:
    """At the end, counted attempts are written: the runtime stops later and commits them, if its engine answers."""
    trail = AuditTrail(runtime)
    tending = asyncio.create_task(trail.tend(), name="audit")
    try:
        yield trail
    finally:
        tending.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STOP_PATIENCE_S):
                await trail.write_all()
