"""Is it alive, can it serve. Asked often and early, so they need nothing but the backend."""

from __future__ import annotations

import asyncio

from dgpu.journal.journal import Room
from dgpu.service.rest.backend import Backend
from dgpu.wire.answers import Health, Ready


async def health(backend: Backend) -> tuple[int, Health]:
    return 200, Health(status="ok", version=backend.options.version)


async def readiness(backend: Backend) -> tuple[int, Ready]:
    runtime = backend.runtime
    seen = await asyncio.to_thread(lambda: backend.history.reach().index)
    index = runtime.committed_index
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
