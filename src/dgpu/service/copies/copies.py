"""The part of a scheduler that gives copies of output to other schedulers and takes copies from them.

Output of an ended run goes from its node to the master. Standbys take it from there: new runs at once, and at each
connection everything that they lack, the latest first. Then they offer runs that the master lacks.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

import structlog

from dgpu.core.model.ids import LeaseId
from dgpu.service.copies import stock, words
from dgpu.service.copies.release import Freed, Release
from dgpu.service.copies.wholeness import Wholeness
from dgpu.service.task_output.pack import OutputPart
from dgpu.service.task_output.store import LogStore

MAX_FRESH = 100_000  # runs that a standby may be behind before it compares everything again
MAX_WAIT_S = 5.0
_SETTLE_S = 30.0  # after a takeover: time for nodes and standbys to come back

_log = structlog.get_logger("dgpu.output")


class Doubt(NamedTuple):
    why: str
    passes: bool  # the same question may soon have an answer


class Copies:
    """`append` stores parts durably. `send_stored` tells the node at a stream that it may delete its copy of a run."""

    def __init__(
        self,
        store: LogStore,
        wholeness: Wholeness,
        append: Callable[[Sequence[OutputPart]], Awaitable[None]],
        send_stored: Callable[[Freed[LeaseId]], None],
    ) -> None:
        self.store = store
        self.wholeness = wholeness
        self.append = append
        self._send_stored = send_stored
        self.release: Release[LeaseId] | None = None  # None: this scheduler does not lead
        self._led_s = 0.0
        self._fresh: deque[words.RunKey] = deque(maxlen=MAX_FRESH)
        self._fresh_end = 0  # the number after the last one of them
        self._arrived = asyncio.Event()
        self._was_alone = False

    # As master

    async def lead(self, before: tuple[int, int], epoch: int) -> None:
        """`before`: the epoch before, and the time of its last group."""
        self._led_s = time.monotonic()
        self.release = Release(self._led_s)
        last_epoch, last_at = before
        await asyncio.to_thread(self.wholeness.on_lead, epoch_before=last_epoch, last_at=last_at, epoch=epoch)

    def on_durable(self, run: words.RunKey, lease_id: LeaseId, link_id: int) -> bool:
        """The whole run is durable here. True: its node may delete it at once."""
        self._fresh.append(run)
        self._fresh_end += 1
        self._arrived.set()
        is_free = self.release is None or self.release.on_durable(lease_id, link_id, time.monotonic())
        self._tell_alone()
        return is_free

    def on_time(self) -> None:
        """Call it about every second."""
        if self.release is not None:
            self._free(self.release.on_time(time.monotonic()))
            self._tell_alone()

    def wake(self) -> None:
        """Answers the questions that wait for a run, so that they do not delay a stop."""
        self._arrived.set()

    async def fresh(self, ask: words.FreshAsk) -> words.FreshRuns:
        if self.release is not None:
            now_s = time.monotonic()
            self._free(self.release.on_heard(ask.name, ask.held, now_s, is_whole=ask.is_whole))
        if ask.after >= self._fresh_end and ask.wait_ms:
            await self._wait(min(MAX_WAIT_S, ask.wait_ms / 1_000))
        seen = self._fresh_end
        if ask.after < 0:
            return words.FreshRuns(seen=seen)
        behind = seen - ask.after
        if behind > len(self._fresh) or behind < 0:
            return words.FreshRuns(seen=seen, is_gap=True)
        first = len(self._fresh) - behind
        runs = [self._fresh[place] for place in range(first, min(first + stock.PAGE_RUNS, len(self._fresh)))]
        offered = await asyncio.to_thread(stock.offers, self.store, dict.fromkeys(runs))
        return words.FreshRuns(seen=ask.after + len(runs), runs=offered)

    async def page(self, ask: words.PageAsk) -> words.Page:
        return await asyncio.to_thread(stock.page, self.store, ask.before)

    async def entries(self, wanted: words.Wanted) -> words.Entries:
        return words.Entries(entries=await asyncio.to_thread(stock.entries, self.store, wanted.runs))

    async def offered(self, own: words.OwnPage) -> words.Wanted:
        """A standby has these runs."""
        found = words.Wanted(runs=tuple(await asyncio.to_thread(stock.lacking, self.store, own.runs)))
        if own.is_last and not found.runs:
            await asyncio.to_thread(self.wholeness.on_filled)
        return found

    async def put(self, given: words.Entries) -> words.Done:
        """Parts that the master lacks. Raises DamagedEntry."""
        await self.append(stock.unpacked(given.entries))
        return words.Done()

    # For readers

    def doubt(self, ended_at: int) -> Doubt | None:
        """Why output of a run that ended then may exist although it is not here; None: it does not."""
        if not self.wholeness.is_doubtful(ended_at):
            return None
        names = [] if self.release is None else self.release.standbys()
        if names:
            return Doubt(f"scheduler {names[0]} may have it and is sending its copies", passes=True)
        why = "another scheduler led when the task ended, its output may be there, and it is not connected"
        return Doubt(why, passes=False)

    @property
    def is_settling(self) -> bool:
        """Nodes may still be on their way to this scheduler."""
        return self.release is not None and time.monotonic() - self._led_s < _SETTLE_S

    # Leaves

    async def _wait(self, seconds: float) -> None:
        self._arrived.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._arrived.wait()
        except TimeoutError:
            pass

    def _free(self, freed: list[Freed[LeaseId]]) -> None:
        for each in freed:
            self._send_stored(each)

    def _tell_alone(self) -> None:
        is_alone = self.release is not None and bool(self.release.one_copy)
        if is_alone and not self._was_alone:
            _log.warning("output_has_one_copy", reason="no standby took copies for two minutes")
        elif self._was_alone and not is_alone:
            _log.info("output_has_two_copies")
        self._was_alone = is_alone
