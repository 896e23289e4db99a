"""Copies of stored content on other schedulers: the part of the master.

Standbys ask for new content all the time, and compare everything at each connection. Content that a submit names shall
be on every standby in contact before the submit is acknowledged (`until_copied`). A master without a standby, or with
one that has no room, goes on with one copy and says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

import structlog

from dgpu.service.content import copy_words as words
from dgpu.service.content.store import (
    Arrival,
    ContentKey,
    ContentMismatch,
    ContentStore,
    ContentStoreFull,
    ContentTooLarge,
    UsedContent,
)
from dgpu.service.copies.release import Freed, Release

LONE_AFTER_S = 10.0  # without a word of a standby. Much shorter than for output: a person waits
MAX_FRESH = 10_000  # keys that a standby may be behind before it compares everything again
MAX_WAIT_S = 5.0
_TICK_S = 0.5

_log = structlog.get_logger("dgpu.content")


class ContentCopies:
    """`used`: what waiting and running tasks need."""

    def __init__(self, store: ContentStore) -> None:
        self.store = store
        self.release: Release[ContentKey] | None = None  # None: this scheduler does not lead
        self.used: Callable[[], Awaitable[UsedContent]] = _nothing_used
        self._fresh: deque[ContentKey] = deque(maxlen=MAX_FRESH)
        self._fresh_end = 0  # the number after the last one of them
        self._arrived = asyncio.Event()
        self._freed = asyncio.Event()
        self._given: dict[
            str, tuple[words.Offer, Arrival, int]
        ] = {}  # by the standby's name, with the next offset
        self._was_alone = False
        self._loop = asyncio.get_running_loop()
        store.on_stored = self._tell_stored

    @contextlib.asynccontextmanager
    async def leading(self) -> AsyncIterator[None]:
        self.release = Release(time.monotonic(), LONE_AFTER_S)
        ticking = asyncio.create_task(self._tick(self.release), name="content-copies")
        try:
            yield
        finally:
            ticking.cancel()
            self.release = None
            self._wake()
            for _, arrival, _ in self._given.values():
                await asyncio.to_thread(arrival.give_up)
            self._given.clear()

    async def until_copied(self, keys: Iterable[ContentKey], patience_s: float) -> None:
        """Returns when every standby in contact has them, or when the patience ends."""
        wanted = list(keys)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                while self.release is not None and any(map(self.release.is_waiting, wanted)):
                    await self._freed.wait()

    def wake(self) -> None:
        """Answers the questions that wait for content, so that they do not delay a stop."""
        self._arrived.set()

    # Questions of standbys

    async def fresh(self, ask: words.FreshAsk) -> words.FreshOffers:
        if self.release is not None:
            now_s = time.monotonic()
            self._free(self.release.on_heard(ask.name, ask.held, now_s, is_whole=ask.is_whole))
            self._free(self.release.on_refused(ask.refused))
        if ask.after >= self._fresh_end and ask.wait_ms:
            self._arrived.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(MAX_WAIT_S, ask.wait_ms / 1_000)):
                    await self._arrived.wait()
        seen = self._fresh_end
        behind = seen - ask.after
        if ask.after < 0:
            return words.FreshOffers(seen=seen)
        if behind > len(self._fresh) or behind < 0:
            return words.FreshOffers(seen=seen, is_gap=True)
        keys = list(self._fresh)[len(self._fresh) - behind :][: words.PAGE]
        offers = await asyncio.to_thread(self._offers, keys)
        return words.FreshOffers(seen=ask.after + len(keys), offers=offers)

    async def page(self, ask: words.PageAsk) -> words.Page:
        found = await asyncio.to_thread(self.store.listed, ask.after, words.PAGE)
        return words.Page(offers=tuple(words.Offer(*each) for each in found))

    async def piece(self, ask: words.PieceAsk) -> words.Piece:
        data = await asyncio.to_thread(piece_of, self.store, ask.key, ask.offset)
        return words.Piece(is_gone=True) if data is None else words.Piece(data=data)

    async def offered(self, own: words.OwnPage) -> words.Wanted:
        lacking = await asyncio.to_thread(self._lacking, own.offers)
        return words.Wanted(keys=tuple(lacking))

    async def put(self, piece: words.GivenPiece) -> words.Done:
        """Content that the master lacks. Raises OSError."""
        try:
            return words.Done(is_refused=not await self._put(piece))
        except (ContentMismatch, ContentStoreFull, ContentTooLarge) as error:
            await self._drop_given(piece.name)
            _log.warning(
                "content_not_copied", name=piece.offer.key[1][:12], reason=str(error) or type(error).__name__
            )
            return words.Done(is_refused=True)

    async def _put(self, piece: words.GivenPiece) -> bool:
        if not piece.offset:
            await self._drop_given(piece.name)
            begun = await asyncio.to_thread(
                self.store.begin_copy,
                piece.offer.key,
                piece.offer.size,
                piece.offer.used_s,
                await self.used(),
            )
            if begun is None:
                return False
            self._given[piece.name] = (piece.offer, begun, 0)
        offer, arrival, expected = self._given.get(piece.name, (None, None, 0))
        if arrival is None or offer != piece.offer or expected != piece.offset:
            return False
        await asyncio.to_thread(arrival.write, piece.data)
        end = expected + len(piece.data)
        if end < piece.offer.size and piece.data:
            self._given[piece.name] = (piece.offer, arrival, end)
            return True
        await asyncio.to_thread(arrival.finish)
        self._given.pop(piece.name, None)  # gone if this scheduler has stopped to lead meanwhile
        return True

    # Leaves

    def _tell_stored(self, key: ContentKey) -> None:
        """Called in any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: the next start compares everything
            self._loop.call_soon_threadsafe(self._on_stored, key)

    def _on_stored(self, key: ContentKey) -> None:
        self._fresh.append(key)
        self._fresh_end += 1
        self._arrived.set()
        if self.release is not None:
            self.release.on_durable(key, 0, time.monotonic())

    def _offers(self, keys: Iterable[ContentKey]) -> tuple[words.Offer, ...]:
        return tuple(words.Offer(*each) for each in self.store.described(dict.fromkeys(keys)))

    def _lacking(self, offers: Iterable[words.Offer]) -> list[ContentKey]:
        return [offer.key for offer in offers if self.store.lacks(offer.key, offer.used_s)]

    async def _drop_given(self, name: str) -> None:
        if (given := self._given.pop(name, None)) is not None:
            await asyncio.to_thread(given[1].give_up)

    async def _tick(self, release: Release[ContentKey]) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            self._free(release.on_time(time.monotonic()))
            is_alone = bool(release.one_copy)
            if is_alone and not self._was_alone:
                _log.warning("content_has_one_copy", reason="no standby could take a copy")
            elif self._was_alone and not is_alone:
                _log.info("content_has_two_copies")
            self._was_alone = is_alone

    def _free(self, freed: list[Freed[ContentKey]]) -> None:
        if freed:
            self._wake()

    def _wake(self) -> None:
        self._freed.set()
        self._freed = asyncio.Event()


def piece_of(store: ContentStore, key: ContentKey, offset: int) -> bytes | None:
    """None: the store does not have it any more. Blocks."""
    if (descriptor := store.open_copy(key)) is None:
        return None
    try:
        return os.pread(descriptor, words.PIECE_BYTES, offset)
    finally:
        os.close(descriptor)


async def _nothing_used() -> UsedContent:
    return frozenset()
