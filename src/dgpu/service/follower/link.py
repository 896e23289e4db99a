"""The scheduler's end of the follower: starts it, sends it committed indexes, receives its progress, restarts it."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import structlog

from dgpu.journal.engine import StateDigest
from dgpu.service.follower.forecasts import Forecasts, Foretold
from dgpu.service.follower.words import (
    EXIT_CANNOT_FOLLOW,
    FROM_NEWEST,
    Ask,
    FillOrder,
    FollowerSettings,
)
from dgpu.service.history.past_words import Fill
from dgpu.service.telemetry.tiers import Batch
from dgpu.wire.questions import Question

_NOTIFY_INTERVAL_S = (
    0.05  # the history may lag this much; a pipe write for each commit would cost more than it brings
)
MAX_FAILURES = 3  # in a row; then new tasks are refused
_FULL_BYTES = 16 << 20  # SQLite fails on a disk with less, on some file systems with "disk I/O error"
_FIRST_DELAY_S = 0.5
_MAX_DELAY_S = 30.0
_HEALTHY_S = 60.0  # a follower that ran this long restarts without delay
_STOP_PATIENCE_S = 60.0
_REMAKE_EVERY_S = 60.0  # on a disk that corrupts data, rebuilding must not become a loop
_MAX_TEXT = 1_000
_MAX_LINE_BYTES = 32 << 20
_MAX_ASKED = 64  # at once
_MAX_UNWRITTEN_BYTES = 8 << 20  # beyond it, batches for a follower that does not read are left out

_log = structlog.get_logger("dgpu.follower")


class FollowerAway(Exception):  # noqa: N818 - the name states the failure
    """The follower is starting, has too many questions, or took too long."""


class AnswerFailed(RuntimeError):  # noqa: N818 - the name states the failure
    """The answer hit a bug."""


class Answered(msgspec.Struct, frozen=True, kw_only=True):
    id: int
    json: msgspec.Raw = msgspec.Raw()
    error: str = ""
    behind: bool = False  # the follower has not read as far as the question needs


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A line from the follower."""

    seen: int | None = None
    at: int = 0
    snapshot: int | None = None
    error: str | None = None
    note: str | None = None
    forecast: Foretold | None = None
    digest: StateDigest | None = None
    answer: Answered | None = None


class FollowerLink:
    """All calls come from the event loop. A dead follower is restarted and catches up.

    A follower that cannot continue, because groups are in no file any more, needs a snapshot of the state in memory:
    `rescue` writes it. `trouble` describes a follower that dies repeatedly without catching up: meanwhile, no snapshot
    is written and no task leaves the memory. A full disk is not trouble: the journal refuses tasks by itself, and the
    follower catches up when there is room.
    """

    def __init__(
        self,
        directory: Path | str,
        settings: FollowerSettings | None = None,
        *,
        rescue: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._directory = Path(directory)
        self._settings = settings or FollowerSettings()
        self._committed = 0
        self._news = asyncio.Event()
        self._progress = asyncio.Event()
        self._stop_wanted = asyncio.Event()
        self._final_snapshot = False
        self._life: asyncio.Task[None] | None = None
        self._process: Process | None = None
        self._delay_s = _FIRST_DELAY_S
        self._marked_index = 0
        self._marked_s = 0.0
        self.seen_index = 0  # the history contains everything up to this group
        self.seen_at = 0  # journal time of that group
        self.snapshot_index = 0  # of the last snapshot that was reported to this scheduler
        self.digest: StateDigest | None = None  # of the last state that it took a fingerprint of
        self.restarts = 0
        self.last_error = ""
        self.trouble = ""  # why it does not follow; empty while it does, or right after it died
        self._rescue = rescue
        self._rescued = False
        self._failures = 0  # in a row, without catching up in between
        self._catches_up_at = 0  # the committed index at its start
        self._snapshot_wanted = False
        self.forecasts = Forecasts()
        self._asked: dict[int, asyncio.Future[bytes]] = {}
        self._next_ask = 0
        self._remake_due_s = 0.0

    @property
    def _stopping(self) -> bool:
        return self._stop_wanted.is_set()

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def start(self, committed: int) -> None:
        """`committed`: the end of the recovered journal."""
        self._committed = committed
        self._news.set()
        self._life = asyncio.get_running_loop().create_task(self._live(), name="follower")

    @property
    def lag_s(self) -> float:
        """How long the history has been behind the committed groups."""
        return 0.0 if self.seen_index >= self._marked_index else time.monotonic() - self._marked_s

    def _mark_lag(self) -> None:
        if self.seen_index >= self._marked_index:
            self._marked_index, self._marked_s = self._committed, time.monotonic()

    def notify(self, index: int) -> None:
        """Committed up to this group. Cheap: many calls become one message."""
        self._committed = index
        self._mark_lag()
        self._news.set()

    def snapshot_soon(self) -> None:
        self._snapshot_wanted = True
        self._news.set()

    async def ask(self, question: Question, *, at: int, patience_s: float) -> bytes:
        """JSON from the state of all groups committed so far. Raises FollowerAway or AnswerFailed."""
        return await self._request(
            lambda number: {"committed": self._committed, "ask": Ask(id=number, at=at, question=question)},
            patience_s,
        )

    async def fill(self, fill: Fill, *, patience_s: float) -> None:
        """Rows for the history, from another scheduler. Raises FollowerAway or AnswerFailed."""
        stdin = None if self._process is None else self._process.stdin
        if stdin is not None and stdin.transport.get_write_buffer_size() > _MAX_UNWRITTEN_BYTES:
            raise FollowerAway
        await self._request(lambda number: {"fill": FillOrder(id=number, fill=fill)}, patience_s)

    async def _request(self, order: Callable[[int], dict[str, object]], patience_s: float) -> bytes:
        stdin = None if self._process is None else self._process.stdin
        if stdin is None or stdin.is_closing() or len(self._asked) >= _MAX_ASKED:
            raise FollowerAway
        self._next_ask = number = self._next_ask + 1
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._asked[number] = future
        try:
            stdin.write(msgspec.json.encode(order(number)) + b"\n")
            async with asyncio.timeout(patience_s):
                return await future
        except (TimeoutError, ConnectionError):
            raise FollowerAway from None
        finally:
            self._asked.pop(number, None)

    async def reach(self, index: int, patience_s: float) -> None:
        """Waits until the history contains this group, at most this long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                while self.seen_index < index:
                    self._progress.clear()
                    await self._progress.wait()

    def record(self, batch: Batch) -> None:
        """For the telemetry file. A gap in it is better than a queue here: nothing is stored for an absent follower."""
        stdin = None if self._process is None else self._process.stdin
        if stdin is None or stdin.is_closing():
            return
        if stdin.transport.get_write_buffer_size() <= _MAX_UNWRITTEN_BYTES:
            stdin.write(msgspec.json.encode({"samples": batch}) + b"\n")

    def remake_history(self) -> None:
        """A reader found the history damaged. The follower may not notice: it writes, and read those pages long ago."""
        stdin = None if self._process is None else self._process.stdin
        now_s = time.monotonic()
        if stdin is None or stdin.is_closing() or now_s < self._remake_due_s:
            return
        self._remake_due_s = now_s + _REMAKE_EVERY_S
        stdin.write(msgspec.json.encode({"remake_history": True}) + b"\n")

    async def stop(self, *, final_snapshot: bool = True) -> None:
        """Lets the follower process all committed groups and write a last snapshot. A hanging one is killed after a
        minute.
        """
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
            if code == EXIT_CANNOT_FOLLOW and (not self._stopping or self._final_snapshot):
                await self._call_rescue()
            if self._stopping:
                return
            self.restarts += 1
            if time.monotonic() - started_s >= _HEALTHY_S:
                self._delay_s = _FIRST_DELAY_S
            self._note_death(code)
            await self._pause(self._delay_s)
            if self._stopping and not self._final_snapshot:
                return
            self._delay_s = min(self._delay_s * 2, _MAX_DELAY_S)

    def _note_death(self, code: int | None) -> None:
        self._failures += 1
        _log.warning("follower_died", code=code, restart_in_seconds=self._delay_s, error=self.last_error)
        if self._failures >= MAX_FAILURES and not self._is_disk_full():
            how = self.last_error or f"exit code {code}"
            self.trouble = (
                f"the process that writes snapshots and history failed {self._failures} times: {how}"
            )
            _log.error("follower_failing", failures=self._failures, error=self.last_error)

    def _is_disk_full(self) -> bool:
        return shutil.disk_usage(self._directory).free < _FULL_BYTES

    def _note_caught_up(self) -> None:
        if self._failures:
            _log.info("follower_follows_again", failures=self._failures)
        self._failures, self.trouble, self._rescued = 0, "", False
        self._delay_s = _FIRST_DELAY_S

    async def _call_rescue(self) -> None:
        if self._rescue is None:
            return
        try:
            await self._rescue()
        except Exception as error:  # noqa: BLE001 - retried after the next end of the follower
            _log.error("rescue_snapshot_failed", error=f"{type(error).__name__}: {error}")
        else:
            self._rescued = True
            _log.warning("rescue_snapshot_written", index=self._committed, cause=self.last_error)

    async def _pause(self, delay_s: float) -> None:
        """Also ends at a stop: the last snapshot then still needs a follower, once."""
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
                *([FROM_NEWEST] if self._rescued else []),
                stdin=PIPE,
                stdout=PIPE,
                limit=_MAX_LINE_BYTES,
                start_new_session=True,  # Ctrl-C is for the scheduler, which then requests a last snapshot
            )
        except OSError as error:
            self.last_error = str(error)
            return None
        self._process = process
        self._catches_up_at = self._committed
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
            for future in self._asked.values():
                if not future.done():
                    future.set_exception(FollowerAway())

    async def _tell(self, process: Process) -> None:
        stdin = process.stdin
        if stdin is None:
            return
        with contextlib.suppress(ConnectionError):  # it died; `_listen` notices
            while True:
                await self._news.wait()
                self._news.clear()
                order: dict[str, object] = {"committed": self._committed}
                if self._snapshot_wanted:
                    self._snapshot_wanted = False
                    order["snapshot"] = True
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
                _log.warning("follower_spoke_nonsense", line=line[:_MAX_TEXT].decode("utf-8", "replace"))
                continue
            self._hear(answer)

    def _hear(self, answer: Answer) -> None:
        if answer.seen is not None:
            self.seen_index, self.seen_at = answer.seen, answer.at
            self._progress.set()
            self._mark_lag()
            if self._failures and answer.seen >= self._catches_up_at:
                self._note_caught_up()
        if answer.snapshot is not None:
            self.snapshot_index = answer.snapshot
            _log.info("snapshot_written", index=answer.snapshot)
        if answer.digest is not None:
            self.digest = answer.digest
        if answer.forecast is not None:
            self.forecasts.take(answer.forecast)
        if answer.answer is not None:
            self._pass_on(answer.answer)
        if answer.note is not None:
            _log.info("follower_note", detail=answer.note[:_MAX_TEXT])
        if answer.error is not None:
            self.last_error = answer.error[:_MAX_TEXT]
            _log.error("follower_error", detail=self.last_error)

    def _pass_on(self, answered: Answered) -> None:
        future = self._asked.get(answered.id)
        if future is None or future.done():
            return
        if answered.behind:
            future.set_exception(FollowerAway())
        elif answered.error:
            _log.error("follower_answer_failed", error=answered.error[:_MAX_TEXT])
            future.set_exception(AnswerFailed(answered.error[:_MAX_TEXT]))
        else:
            future.set_result(bytes(answered.json))
