"""A standby takes copies of content from the master, and then offers its own. Runs until it is cancelled."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable

import structlog

from dgpu.service.content import copy_words as words
from dgpu.service.content.copies import ContentCopies, piece_of
from dgpu.service.content.store import (
    Arrival,
    ContentKey,
    ContentMismatch,
    ContentStoreFull,
    ContentTooLarge,
)
from dgpu.service.copies.taking import Master, MasterGone

_RETRY_S = 1.0
_WAIT_MS = 1_000
_REPEAT_S = 600.0  # everything is compared again: files may have been lost, or used again, meanwhile

_log = structlog.get_logger("dgpu.content")


async def copy_content_for_ever(
    copies: ContentCopies, name: str, connect: Callable[[], Master | None]
) -> None:
    """`connect` returns None while no other scheduler leads."""
    trouble = ""
    while True:
        master = connect()
        if master is not None:
            try:
                await Copying(copies, name, master).run()
            except (MasterGone, OSError) as error:
                if str(error) != trouble:
                    _log.warning("content_not_copied", reason=str(error))
                trouble = str(error)
            finally:
                with contextlib.suppress(MasterGone):
                    await master.close()
        await asyncio.sleep(_RETRY_S)


class Copying:
    """One connection. New content goes first; between, everything is compared, page by page."""

    def __init__(self, copies: ContentCopies, name: str, master: Master) -> None:
        self._copies = copies
        self._name = name
        self._master = master
        self._seen = -1
        self._held: list[ContentKey] = []
        self._refused: list[ContentKey] = []

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        repeat_s = 0.0
        is_whole = False
        while True:
            fresh = await self._ask_fresh(is_whole=is_whole)
            if fresh.offers:
                is_whole = await self._take(fresh.offers) and is_whole
            elif fresh.is_gap or loop.time() >= repeat_s:
                is_whole = await self._take_all()
                await self._give_all()
                repeat_s = loop.time() + _REPEAT_S

    async def _ask_fresh(self, *, is_whole: bool) -> words.FreshOffers:
        held, refused = tuple(self._held), tuple(self._refused)
        self._held, self._refused = [], []
        ask = words.FreshAsk(
            name=self._name,
            after=self._seen,
            held=held,
            refused=refused,
            is_whole=is_whole,
            wait_ms=0 if held or refused or self._seen < 0 else _WAIT_MS,
        )
        fresh = await self._master.call("Fresh", ask, words.FreshOffers)
        self._seen = fresh.seen
        return fresh

    async def _take_all(self) -> bool:
        """False: something could not be taken."""
        after: ContentKey | None = None
        is_whole = True
        while (page := await self._master.call("Page", words.PageAsk(after=after), words.Page)).offers:
            is_whole = await self._take(page.offers) and is_whole
            after = page.offers[-1].key
        return is_whole

    async def _take(self, offers: Iterable[words.Offer]) -> bool:
        is_whole = True
        for offer in offers:
            lacks = await asyncio.to_thread(self._copies.store.lacks, offer.key, offer.used_s)
            is_here = await self._fetch(offer) if lacks else True
            (self._held if is_here else self._refused).append(offer.key)
            is_whole = is_whole and is_here is not False
        return is_whole

    async def _fetch(self, offer: words.Offer) -> bool | None:
        """None: it need not be here."""
        try:
            arrival = await asyncio.to_thread(
                self._copies.store.begin_copy, offer.key, offer.size, offer.used_s, await self._copies.used()
            )
            if arrival is None:
                return None
            try:
                return await self._fill(arrival, offer)
            except BaseException:
                await asyncio.to_thread(arrival.give_up)
                raise
        except (ContentMismatch, ContentStoreFull, ContentTooLarge) as error:
            _log.warning(
                "content_not_copied", name=offer.key[1][:12], reason=str(error) or type(error).__name__
            )
            return False

    async def _fill(self, arrival: Arrival, offer: words.Offer) -> bool | None:
        offset = 0
        while offset < offer.size:
            ask = words.PieceAsk(key=offer.key, offset=offset)
            piece = await self._master.call("Piece", ask, words.Piece)
            if not piece.data:  # deleted there meanwhile
                await asyncio.to_thread(arrival.give_up)
                return None
            await asyncio.to_thread(arrival.write, piece.data)
            offset += len(piece.data)
        await asyncio.to_thread(arrival.finish)
        return True

    async def _give_all(self) -> None:
        after: ContentKey | None = None
        store = self._copies.store
        while listed := await asyncio.to_thread(store.listed, after, words.PAGE):
            offers = {each[0]: words.Offer(*each) for each in listed}
            own = words.OwnPage(offers=tuple(offers.values()))
            wanted = await self._master.call("Offered", own, words.Wanted)
            for key in wanted.keys:
                if key in offers:
                    await self._give(offers[key])
            after = listed[-1][0]

    async def _give(self, offer: words.Offer) -> None:
        offset = 0
        while True:
            data = await asyncio.to_thread(piece_of, self._copies.store, offer.key, offset)
            if data is None:
                return
            piece = words.GivenPiece(name=self._name, offer=offer, offset=offset, data=data)
            done = await self._master.call("Put", piece, words.Done)
            offset += len(data)
            if done.is_refused or not data or offset >= offer.size:
                return
