"""Compares the states of master and standby every 10,000 groups.

The follower process of each scheduler replays its own copy of the journal and takes the fingerprint of its state, so
that neither service stops for it. The master publishes its fingerprint in the engine. A standby with another one after
the same group says so and does not lead: one of the two has a damaged memory or another version with a defect.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import structlog

from dgpu.journal.engine import Engine, EngineError, StateDigest, Term

_LOOK_S = 5.0

_log = structlog.get_logger("dgpu.leadership")


class Digests:
    """`own`: the last fingerprint of this scheduler. `term`: while it leads. `differs` is told once."""

    def __init__(
        self,
        engine: Engine,
        *,
        own: Callable[[], StateDigest | None],
        term: Callable[[], Term | None],
        differs: Callable[[str], None],
        look_s: float = _LOOK_S,
    ) -> None:
        self._engine = engine
        self._own = own
        self._term = term
        self._differs = differs
        self._look_s = look_s
        self._done: StateDigest | None = None  # published or compared

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self._run(), name="digests")
        try:
            yield
        finally:
            task.cancel()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._look_s)
            if (why := await asyncio.to_thread(self.look)) is not None:
                _log.error("state_differs", reason=why)
                self._differs(why)

    def look(self) -> str | None:
        """Why this standby must not lead; None: nothing speaks against it. Blocks."""
        own, term = self._own(), self._term()
        if own is None or own == self._done:
            return None
        try:
            if term is not None:
                self._engine.publish_digest(term, own)
                self._done = own
                return None
            published = self._engine.digest()
        except EngineError:
            return None  # the next look tries again
        if published is None or published.index < own.index:
            return None  # the master needs longer
        self._done = own
        if published.index > own.index or published.digest == own.digest:
            return None
        return (
            f"after group {own.index}, this standby has the state {own.digest[:12]}, the master "
            f"{published.digest[:12]}: it does not lead. Restart it; if this comes "
            f"again, move its directory away and join anew"
        )
