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
_FIRST_PAGE: ContentKey = ("", "")  # before all keys

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
    """One connection. New content goes first; between, everything is compared, one page at a time. So a message names
    at most some pages of keys, and a submit does not wait for the comparison of a large store.
    """

    def __init__(self, copies: ContentCopies, name: str, master: Master) -> None:
        self._copies = copies
        self._name = name
        self._master = master
        self._seen = -1
        self._held: list[ContentKey] = []
        self._refused: list[ContentKey] = []
        self._begin_comparison()

    def _begin_comparison(self) -> None:
        self._theirs: ContentKey | None = (
            _FIRST_PAGE  # the master's next page is after it; None: all compared
        )
        self._own: ContentKey | None = _FIRST_PAGE  # the same for our own content
        self._lacks_some = False  # could not be taken

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        repeat_s = loop.time() + _REPEAT_S
        while True:
            fresh = await self._ask_fresh()
            if fresh.is_gap or loop.time() >= repeat_s:
                self._begin_comparison()
                repeat_s = loop.time() + _REPEAT_S
            if fresh.offers:
                await self._take(fresh.offers)
            elif self._theirs is not None:
                await self._take_page(self._theirs)
            elif self._own is not None:
                await self._give_page(self._own)

    async def _ask_fresh(self) -> words.FreshOffers:
        is_compared = self._theirs is None
        is_idle = is_compared and self._own is None
        held, refused = tuple(self._held), tuple(self._refused)
        self._held, self._refused = [], []
        ask = words.FreshAsk(
            name=self._name,
            after=self._seen,
            held=held,
            refused=refused,
            is_whole=is_compared and not self._lacks_some,
            wait_ms=_WAIT_MS if is_idle and not (held or refused) else 0,
        )
        fresh = await self._master.call("Fresh", ask, words.FreshOffers)
        self._seen = fresh.seen
        return fresh

    async def _take_page(self, after: ContentKey) -> None:
        page = await self._master.call("Page", words.PageAsk(after=after), words.Page)
        await self._take(page.offers)
        self._theirs = page.offers[-1].key if page.offers else None

    async def _take(self, offers: Iterable[words.Offer]) -> None:
        for offer in offers:
            lacks = await asyncio.to_thread(self._copies.store.lacks, offer.key, offer.used_s)
            is_here = await self._fetch(offer) if lacks else True
            (self._held if is_here else self._refused).append(offer.key)
            self._lacks_some = self._lacks_some or is_here is False

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

    async def _give_page(self, after: ContentKey) -> None:
        listed = await asyncio.to_thread(self._copies.store.listed, after, words.PAGE)
        self._own = listed[-1][0] if listed else None
        if not listed:
            return
        offers = {each[0]: words.Offer(*each) for each in listed}
        own = words.OwnPage(offers=tuple(offers.values()))
        wanted = await self._master.call("Offered", own, words.Wanted)
        for key in wanted.keys:
            if key in offers:
                await self._give(offers[key])

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
