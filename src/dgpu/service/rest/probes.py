"""Is it alive, can it serve. Asked often and early, so they need nothing but the backend."""

from __future__ import annotations

import asyncio
import sqlite3

from dgpu.journal.journal import Room
from dgpu.service.history import HistoryDamaged
from dgpu.service.rest.backend import Backend
from dgpu.wire.answers import Health, Ready


async def health(backend: Backend) -> tuple[int, Health]:
    return 200, Health(status="ok", version=backend.options.version)


async def readiness(backend: Backend) -> tuple[int, Ready]:
    runtime = backend.runtime
    index = runtime.committed_index
    try:
        seen = await asyncio.to_thread(lambda: backend.history.reach().index)
    except (HistoryDamaged, sqlite3.OperationalError):
        seen = 0  # far behind: tasks are taken all the same
    detail = ""
    if not runtime.ready:
        detail = "The journal is being read."
    elif runtime.room is not Room.OK:
        detail = "The disk is full: no new tasks are taken."
    answer = Ready(
        ready=not detail,
        role=backend.options.role,
        epoch=runtime.epoch,
        journal_index=index,
        storage_full=runtime.room is not Room.OK,
        history_lag=max(0, index - seen),
        detail=detail,
    )
    return 503 if detail else 200, answer
