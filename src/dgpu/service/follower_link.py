"""The scheduler's end of the follower: starts it, tells it what is committed, hears what it has, restarts it."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from asyncio.subprocess import PIPE, Process
from pathlib import Path

import msgspec
import structlog

from dgpu.service.follower import FollowerSettings

_NOTIFY_INTERVAL_S = (
    0.05  # the history may lag this much; a pipe write for each commit would cost more than it gives
)
_FIRST_DELAY_S = 0.5
_MOST_DELAY_S = 30.0
_HEALTHY_S = 60.0  # who lived that long starts again without delay
_STOP_PATIENCE_S = 60.0
_MOST_TEXT = 1_000

_log = structlog.get_logger("dgpu.follower")


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A line from the follower."""

    seen: int | None = None
    at: int = 0
    snapshot: int | None = None
    error: str | None = None
    note: str | None = None


class FollowerLink:
    """All calls come from the event loop. A dead follower harms nobody: it is started again and catches up."""

    def __init__(self, directory: Path | str, settings: FollowerSettings | None = None) -> None:
        self._directory = Path(directory)
        self._settings = settings or FollowerSettings()
        self._committed = 0
        self._news = asyncio.Event()
        self._stop_wanted = asyncio.Event()
        self._final_snapshot = False
        self._life: asyncio.Task[None] | None = None
        self._process: Process | None = None
        self._delay_s = _FIRST_DELAY_S
        self.seen_index = 0  # the history has everything up to this group
        self.seen_at = 0  # journal time of that group
        self.snapshot_index = 0  # of the last snapshot written while we listened
        self.restarts = 0
        self.last_error = ""

    @property
    def _stopping(self) -> bool:
        return self._stop_wanted.is_set()

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def start(self, committed: int) -> None:
        """`committed` is where the recovered journal ends."""
        self._committed = committed
        self._news.set()
        self._life = asyncio.get_running_loop().create_task(self._live(), name="follower")

    def notify(self, index: int) -> None:
        """Committed up to here. Cheap: many calls become one message."""
        self._committed = index
        self._news.set()

    async def stop(self, *, final_snapshot: bool = True) -> None:
        """Let it finish what is committed, and write a last snapshot. One that hangs is killed after a minute."""
        if self._life is None:
            return
        self._final_snapshot = final_snapshot
        self._stop_wanted.set()
        self._news.set()
        try:
            async with asyncio.timeout(_STOP_PATIENCE_S):
                await asyncio.shield(self._life)
        except TimeoutError:
            _log.error("follower_killed", reason="it did not stop in time")
            self._life.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._life
        self._life = None

    async def _live(self) -> None:
        while True:
            started_s = time.monotonic()
            code = await self._one_life()
            if self._stopping:
                return
            self.restarts += 1
            if time.monotonic() - started_s >= _HEALTHY_S:
                self._delay_s = _FIRST_DELAY_S
            _log.warning("follower_died", code=code, restart_in_seconds=self._delay_s, error=self.last_error)
            await self._pause(self._delay_s)
            if self._stopping and not self._final_snapshot:
                return
            self._delay_s = min(self._delay_s * 2, _MOST_DELAY_S)

    async def _pause(self, delay_s: float) -> None:
        """Also over when we are told to stop: then the last snapshot still wants a follower, once."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stop_wanted.wait(), delay_s)

    async def _one_life(self) -> int | None:
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "dgpu.service.follower",
                str(self._directory),
                msgspec.json.encode(self._settings).decode(),
                stdin=PIPE,
                stdout=PIPE,
                start_new_session=True,  # Ctrl-C is for the scheduler, which then asks for a last snapshot
            )
        except OSError as error:
            self.last_error = str(error)
            return None
        self._process = process
        self._news.set()
        teller = asyncio.get_running_loop().create_task(self._tell(process))
        try:
            await self._listen(process)
            return await process.wait()
        finally:
            teller.cancel()
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
            self._process = None

    async def _tell(self, process: Process) -> None:
        stdin = process.stdin
        if stdin is None:
            return
        with contextlib.suppress(ConnectionError):  # it died; `_listen` notices
            while True:
                await self._news.wait()
                self._news.clear()
                order: dict[str, object] = {"committed": self._committed}
                if self._stopping:
                    order |= {"stop": True, "final_snapshot": self._final_snapshot}
                stdin.write(msgspec.json.encode(order) + b"\n")
                await stdin.drain()
                if self._stopping:
                    return
                await asyncio.sleep(_NOTIFY_INTERVAL_S)

    async def _listen(self, process: Process) -> None:
        stdout = process.stdout
        if stdout is None:
            return
        while line := await stdout.readline():
            try:
                answer = msgspec.json.decode(line, type=Answer)
            except msgspec.DecodeError:
                _log.warning("follower_spoke_nonsense", line=line[:_MOST_TEXT].decode("utf-8", "replace"))
                continue
            self._hear(answer)

    def _hear(self, answer: Answer) -> None:
        if answer.seen is not None:
            self.seen_index, self.seen_at = answer.seen, answer.at
        if answer.snapshot is not None:
            self.snapshot_index = answer.snapshot
            _log.info("snapshot_written", index=answer.snapshot)
        if answer.note is not None:
            _log.info("follower_note", detail=answer.note[:_MOST_TEXT])
        if answer.error is not None:
            self.last_error = answer.error[:_MOST_TEXT]
            _log.error("follower_error", detail=self.last_error)
