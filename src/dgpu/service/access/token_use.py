"""The last use of each API token: kept in memory, and stored in one file every ten minutes and at the stop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import msgspec
import structlog

from dgpu.service.access.private_file import read_numbers, write_private
from dgpu.service.access.token_book import TokenBook

USE_NAME: Final = "token.used"
STORE_SECONDS: Final = 600.0

_log = structlog.get_logger("dgpu.access")


@contextlib.asynccontextmanager
async def stored_use(book: TokenBook, path: Path, every_s: float = STORE_SECONDS) -> AsyncIterator[None]:
    """Losing the file costs only the column: it never stops a start or a request."""
    book.recall_use(read_numbers(path))
    storing = asyncio.create_task(_store_for_ever(book, path, every_s), name="token-use")
    try:
        yield
    finally:
        storing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await storing
        await _store(book, path)


async def _store_for_ever(book: TokenBook, path: Path, every_s: float) -> None:
    while True:
        await asyncio.sleep(every_s)
        await _store(book, path)


async def _store(book: TokenBook, path: Path) -> None:
    used = book.take_use()
    if used is None:
        return
    try:
        await asyncio.to_thread(write_private, path, msgspec.json.encode(used))
    except OSError as error:
        _log.warning("token_use_not_stored", error=str(error))
