"""Fills the history of a scheduler that joined later, or was away for long, from the history of another one.

A standby compares both at each connection. The history that lacks more gets the rows of the other one, in pages. It is
the standby's, or the master's if a standby took over before it had everything.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable
from typing import Protocol

import structlog

from dgpu.service.copies.taking import Master, MasterGone
from dgpu.service.follower.link import AnswerFailed, FollowerAway, FollowerLink
from dgpu.service.history import past_words as words
from dgpu.service.history.past_pages import Past, past_page
from dgpu.service.history.reader import HistoryDamaged

_RETRY_S = 5.0
_REPEAT_S = 600.0  # a history may have been rebuilt meanwhile
_AWAY_S = 1.0
_PATIENCE_S = 60.0  # the follower may have much to write

_log = structlog.get_logger("dgpu.history")


class Store(Protocol):
    """A history, here or at another scheduler."""

    async def reach(self) -> words.Reach: ...

    async def page(self, ask: words.PageAsk) -> words.PastPage: ...

    async def fill(self, given: words.Fill) -> words.Done: ...


class OwnHistory:
    """Also answers other schedulers."""

    def __init__(self, past: Past, follower: FollowerLink) -> None:
        self._past = past
        self._follower = follower

    async def reach(self, _: words.ReachAsk | None = None) -> words.Reach:
        return await asyncio.to_thread(self._past.history.reach)

    async def page(self, ask: words.PageAsk) -> words.PastPage:
        return await asyncio.to_thread(past_page, self._past, ask.cursor, ask.upto)

    async def fill(self, given: words.Fill) -> words.Done:
        """Raises FollowerAway or AnswerFailed."""
        await self._follower.fill(given, patience_s=_PATIENCE_S)
        return words.Done()


class _Other:
    def __init__(self, master: Master) -> None:
        self._master = master

    async def reach(self) -> words.Reach:
        return await self._master.call("Reach", words.ReachAsk(), words.Reach)

    async def page(self, ask: words.PageAsk) -> words.PastPage:
        return await self._master.call("Page", ask, words.PastPage)

    async def fill(self, given: words.Fill) -> words.Done:
        return await self._master.call("Fill", given, words.Done)


async def fill_histories_for_ever(own: OwnHistory, connect: Callable[[], Master | None]) -> None:
    """`connect` returns None while no other scheduler leads."""
    trouble = ""
    while True:
        pause_s = _RETRY_S
        master = connect()
        if master is not None:
            try:
                await compare(own, _Other(master))
                pause_s, trouble = _REPEAT_S, ""
            except (MasterGone, HistoryDamaged, AnswerFailed, FollowerAway, sqlite3.Error) as error:
                if str(error) != trouble:
                    _log.warning("history_not_copied", reason=str(error) or type(error).__name__)
                trouble = str(error)
            finally:
                with contextlib.suppress(MasterGone):
                    await master.close()
        await asyncio.sleep(pause_s)


async def compare(own: Store, other: Store) -> None:
    ours, theirs = await own.reach(), await other.reach()
    if theirs.lacks_until < ours.lacks_until <= theirs.index:
        await _fill(own, other, theirs, ours.lacks_until)
    elif ours.lacks_until < theirs.lacks_until <= ours.index:
        await _fill(other, own, ours, theirs.lacks_until)


async def _fill(lacking: Store, source: Store, reach: words.Reach, upto: int) -> None:
    cursor: words.Cursor | None = words.Cursor()
    pages = 0
    while cursor is not None:
        page = await source.page(words.PageAsk(cursor=cursor, upto=upto))
        await _patiently(lacking, words.Fill(page=page))
        cursor, pages = page.next, pages + 1
    await _patiently(lacking, words.Fill(source=reach))
    _log.info("history_filled", upto=upto, from_index=reach.lacks_until, pages=pages)


async def _patiently(lacking: Store, given: words.Fill) -> None:
    """The follower may be starting."""
    for _ in range(int(_PATIENCE_S / _AWAY_S)):
        try:
            await lacking.fill(given)
        except FollowerAway:
            await asyncio.sleep(_AWAY_S)
        else:
            return
    raise FollowerAway("the process that writes the history is away")
