"""Asks for the health of the engine every few seconds, so that status, metrics and alerts never wait for it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import structlog

from dgpu.journal.engine import Engine, EngineError, EngineHealth

_LOOK_S = 5.0

_log = structlog.get_logger("dgpu.leadership")


class EngineWatch:
    """`health` is the last answer; None: there is none yet."""

    def __init__(self, engine: Engine, *, look_s: float = _LOOK_S) -> None:
        self._engine = engine
        self._look_s = look_s
        self.health: EngineHealth | None = None

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[EngineWatch]:
        looking = asyncio.create_task(self._run(), name="engine-watch")
        try:
            yield self
        finally:
            looking.cancel()

    async def _run(self) -> None:
        while True:
            try:
                self.health = await asyncio.to_thread(self._engine.health)
            except EngineError as error:  # the calls of the leadership report it to the operator
                _log.warning("engine_health_unknown", error=str(error))
            await asyncio.sleep(self._look_s)
