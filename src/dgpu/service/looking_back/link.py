"""The scheduler's end of processes that look back: one at a time, each with a bound on its time."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from asyncio.subprocess import DEVNULL, PIPE
from pathlib import Path

import msgspec

from dgpu.service.looking_back.words import LookBack, Seen

_MAX_WAITING = 8
_LONGEST_S = 60.0


class Busy(Exception):  # noqa: N818 - it says what happened
    """Too many questions wait already."""


class LookingBack:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._turn = asyncio.Lock()
        self._waiting = 0

    async def ask(self, question: LookBack) -> Seen:
        """Raises Busy."""
        if self._waiting >= _MAX_WAITING:
            raise Busy
        self._waiting += 1
        try:
            async with self._turn:
                return await self._answered(question)
        finally:
            self._waiting -= 1

    async def _answered(self, question: LookBack) -> Seen:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "dgpu.service.looking_back",
            str(self._directory),
            msgspec.json.encode(question).decode(),
            stdin=DEVNULL,
            stdout=PIPE,
        )
        try:
            async with asyncio.timeout(_LONGEST_S):
                told, _ = await process.communicate()
        except TimeoutError:
            return Seen(error=f"it took longer than {_LONGEST_S:g} seconds")
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        if process.returncode:
            return Seen(error=f"the process that reads the journal ended with code {process.returncode}")
        return msgspec.json.decode(told, type=Seen)
