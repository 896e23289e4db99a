"""Fills the history of a scheduler that joined later, or was away for long, from the history of another one.

A standby compares both twice a minute. The history that is complete only from a later group on gets the rows of the
other one, in pages. It is the standby's, or the master's if a standby took over before it had everything.
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
_MAX_RETRY_S = 300.0  # rows that do not fit are refused again, after all pages before them
_REPEAT_S = 30.0  # another scheduler may lead by now, and a history may have been rebuilt
# The follower may have much to write. It is less than the patience of another scheduler that waits for it.
_PATIENCE_S = 20.0
_FAILURES = (MasterGone, HistoryDamaged, AnswerFailed, sqlite3.Error, OSError)

_log = structlog.get_logger("dgpu.history")


class OtherCluster(Exception):  # noqa: N818 - it says what happened
    """Rows of another cluster would be in the history for ever."""


class Store(Protocol):
    """A history, here or at another scheduler."""

    async def reach(self) -> words.Reach: ...

    async def page(self, ask: words.PageAsk) -> words.PastPage: ...

    async def fill(self, given: words.Fill) -> words.Done: ...


class OwnHistory:
    """Also answers other schedulers."""

    def __init__(self, past: Past, follower: FollowerLink, cluster_id: Callable[[], str]) -> None:
        self._past = past
        self._follower = follower
        self.cluster_id = cluster_id

    async def reach(self, ask: words.ReachAsk | None = None) -> words.Reach:
        """Raises OtherCluster, or FollowerAway before the follower has said what is in it: a scheduler that joins has
        no history yet.
        """
        if ask is not None and ask.cluster_id != self.cluster_id():
            raise OtherCluster(f"it is of cluster {self.cluster_id()}, not of cluster {ask.cluster_id}")
        if not self._follower.seen_index:
            raise FollowerAway
        return await asyncio.to_thread(self._past.history.reach)

    async def page(self, ask: words.PageAsk) -> words.PastPage:
        return await asyncio.to_thread(past_page, self._past, ask.cursor, ask.upto)

    async def fill(self, given: words.Fill) -> words.Done:
        """Raises FollowerAway or AnswerFailed."""
        await self._follower.fill(given, patience_s=_PATIENCE_S)
        return words.Done()


class _Other:
    def __init__(self, master: Master, cluster_id: str) -> None:
        self._master = master
        # Ours. The scheduler of another cluster may listen at the address of the master by now.
        self._cluster_id = cluster_id

    async def reach(self) -> words.Reach:
        return await self._master.call("Reach", words.ReachAsk(cluster_id=self._cluster_id), words.Reach)

    async def page(self, ask: words.PageAsk) -> words.PastPage:
        return await self._master.call("Page", ask, words.PastPage)

    async def fill(self, given: words.Fill) -> words.Done:
        return await self._master.call("Fill", given, words.Done)


async def fill_histories_for_ever(own: OwnHistory, connect: Callable[[], Master | None]) -> None:
    """`connect` returns None while no other scheduler leads."""
    trouble, retry_s, is_told = "", _RETRY_S, False
    while True:
        pause_s = _RETRY_S
        try:
            if await _compare_with_master(own, connect):
                pause_s, trouble, retry_s = _REPEAT_S, "", _RETRY_S
                if not is_told:
                    _log.info("history_complete")
                is_told = True
        except FollowerAway:
            pass  # it is starting
        except _FAILURES as error:
            if str(error) != trouble:
                _log.warning("history_not_copied", reason=str(error) or type(error).__name__)
            trouble = str(error)
            pause_s, retry_s = retry_s, min(2 * retry_s, _MAX_RETRY_S)
        except Exception:  # noqa: BLE001 - a bug here must not end the copying for ever
            _log.exception("history_not_copied")
            pause_s = _REPEAT_S
        await asyncio.sleep(pause_s)


async def _compare_with_master(own: OwnHistory, connect: Callable[[], Master | None]) -> bool:
    master = connect()
    if master is None:
        return False
    try:
        return await compare(own, _Other(master, own.cluster_id()))
    finally:
        with contextlib.suppress(MasterGone):
            await master.close()


async def compare(own: Store, other: Store) -> bool:
    """False: a history has not come far enough yet to fill the other one."""
    ours, theirs = await own.reach(), await other.reach()
    if theirs.lacks_until < ours.lacks_until:
        return await _fill(own, other, ours, theirs)
    if ours.lacks_until < theirs.lacks_until:
        return await _fill(other, own, theirs, ours)
    return True


async def _fill(lacking: Store, source: Store, lacks: words.Reach, has: words.Reach) -> bool:
    upto = lacks.lacks_until
    if has.index < upto:
        return False
    cursor: words.Cursor | None = words.Cursor()
    pages = 0
    while cursor is not None:
        page = await source.page(words.PageAsk(cursor=cursor, upto=upto))
        await lacking.fill(words.Fill(into=lacks.state, page=page))
        cursor, pages = page.next, pages + 1
    if (await source.reach()).state != has.state:
        return False  # it was rebuilt meanwhile: it may have given less than it said
    await lacking.fill(words.Fill(into=lacks.state, source=has))
    _log.info("history_filled", upto=upto, from_index=has.lacks_until, pages=pages)
    return True
