"""Sessions that ended before their time: a copy of the cookie opens nothing, also after a restart."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import msgspec
import structlog

from dgpu.service.access.private_file import read_numbers, write_private

ENDED_NAME: Final = "sessions.ended"
MAX_ENDED: Final = 10_000

_log = structlog.get_logger("dgpu.access")


class EndedSessions:
    """A cookie can be used until its own expiry, so an id is stored until then. Only a client that signed in can add
    one. If there are too many, the one that expires first is dropped.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path  # None: in memory only
        self._until_s: dict[str, int] = {} if path is None else read_numbers(path)
        self._writing = asyncio.Lock()

    def __contains__(self, session_id: str) -> bool:
        return session_id in self._until_s

    def add(self, session_id: str, until_s: int, now_s: float) -> None:
        known = {each: until for each, until in self._until_s.items() if until > now_s}
        known[session_id] = until_s
        if len(known) > MAX_ENDED:
            del known[min(known, key=lambda each: (known[each], each))]
        self._until_s = known

    async def save(self) -> None:
        """A disk that is full keeps nobody signed in: the id counts in memory."""
        if self._path is None:
            return
        async with self._writing:
            try:
                await asyncio.to_thread(write_private, self._path, msgspec.json.encode(self._until_s))
            except OSError as error:
                _log.warning("ended_sessions_not_stored", error=str(error))
