"""A standby takes copies of output from the master, and then offers its own. Runs until it is cancelled."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import msgspec
import structlog

from dgpu.core.model.ids import LeaseId
from dgpu.service.copies import stock, words
from dgpu.service.copies.copies import Copies

_RETRY_S = 1.0
_WAIT_MS = 1_000
_REPEAT_S = 600.0  # everything is compared again: files may have been lost meanwhile

_log = structlog.get_logger("dgpu.output")
T = TypeVar("T", bound=msgspec.Struct)


class MasterGone(Exception):  # noqa: N818 - the name states the failure
    """The master does not answer, or refuses."""


class Master(Protocol):
    """A connection to the scheduler that leads."""

    async def call(self, method: str, message: msgspec.Struct, answer: type[T]) -> T:
        """Raises MasterGone."""
        ...

    async def close(self) -> None: ...


async def take_for_ever(
    copies: Copies, name: str, connect: Callable[[], Master | None], now_ms: Callable[[], int]
) -> None:
    """`connect` returns None while no other scheduler leads."""
    trouble = ""
    while True:
        master = connect()
        if master is not None:
            try:
                await Taking(copies, name, master, now_ms).run()
            except (MasterGone, stock.DamagedEntry, OSError) as error:
                if str(error) != trouble:
                    _log.warning("output_not_copied", reason=str(error))
                trouble = str(error)
            finally:
                with contextlib.suppress(MasterGone):
                    await master.close()
        await asyncio.sleep(_RETRY_S)


class Taking:
    """One connection. New runs go first; between them, one page of older runs at a time."""

    def __init__(self, copies: Copies, name: str, master: Master, now_ms: Callable[[], int]) -> None:
        self._copies = copies
        self._name = name
        self._master = master
        self._now_ms = now_ms
        self._seen = -1
        self._held: list[LeaseId] = []
        self._before: words.RunKey | None = stock.FIRST_PAGE  # of the master's next page; None: all compared
        self._own: words.RunKey | None = stock.FIRST_PAGE  # of our own next page

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        repeat_s = loop.time() + _REPEAT_S
        while True:
            fresh = await self._ask_fresh()
            if fresh.is_gap or loop.time() >= repeat_s:
                self._before, repeat_s = stock.FIRST_PAGE, loop.time() + _REPEAT_S
            if fresh.runs:
                await self._take(fresh.runs)
            elif self._before is not None:
                await self._take_page(self._before)
            elif self._own is not None:
                await self._give_page(self._own)

    async def _ask_fresh(self) -> words.FreshRuns:
        asked_at = self._now_ms()
        is_whole = self._before is None
        is_idle = is_whole and self._own is None
        held, self._held = tuple(self._held), []
        ask = words.FreshAsk(
            name=self._name,
            after=self._seen,
            held=held,
            is_whole=is_whole,
            wait_ms=_WAIT_MS if is_idle and not held else 0,
        )
        fresh = await self._master.call("Fresh", ask, words.FreshRuns)
        self._seen = fresh.seen
        if is_whole and not fresh.is_gap:
            await asyncio.to_thread(self._copies.wholeness.on_compared, asked_at)
        return fresh

    async def _take_page(self, before: words.RunKey) -> None:
        if self._copies.store.is_nearly_full:
            self._before = None  # older output would drive out newer output
            return
        page = await self._master.call("Page", words.PageAsk(before=before), words.Page)
        await self._take(page.runs)
        self._before = page.before

    async def _take(self, runs: Sequence[words.OfferedRun]) -> None:
        store = self._copies.store
        wanted = await asyncio.to_thread(stock.lacking, store, runs)
        while wanted:
            answer = await self._master.call("Entries", words.Wanted(runs=tuple(wanted)), words.Entries)
            await self._copies.append(stock.unpacked(answer.entries))
            before, wanted = wanted, await asyncio.to_thread(stock.lacking, store, runs)
            if wanted == before:
                # The master lost them meanwhile, or they are damaged there. Their nodes keep their copies.
                _log.warning("output_not_copied", runs=len(wanted), reason="the master cannot read it")
                break
        missing = stock.leases_of(wanted)
        self._held += [run.lease_id for run in runs if run.lease_id not in missing]

    async def _give_page(self, before: words.RunKey) -> None:
        store = self._copies.store
        page = await asyncio.to_thread(stock.page, store, before)
        is_last = page.before is None
        own = words.OwnPage(name=self._name, runs=page.runs, is_last=is_last)
        wanted = await self._master.call("Offered", own, words.Wanted)
        while wanted.runs:
            entries = await asyncio.to_thread(stock.entries, store, wanted.runs)
            if not entries:
                break
            await self._master.call("Put", words.Entries(entries=entries), words.Done)
            answer = await self._master.call("Offered", own, words.Wanted)
            if answer == wanted:
                break
            wanted = answer
        self._own = page.before
