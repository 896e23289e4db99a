"""Stored content is on every scheduler: two stores on disk, and the messages between them without a network."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dgpu.core.model.ids import TenantId
from dgpu.service.content import copies as copies_module
from dgpu.service.content import copy_words as words
from dgpu.service.content.copies import ContentCopies
from dgpu.service.content.copy_words import PIECE_BYTES
from dgpu.service.content.copying import Copying, copy_content_for_ever
from dgpu.service.content.store import ContentKey, ContentLimits, ContentStore, key_of
from dgpu.service.copies.taking import MasterGone

pytestmark = pytest.mark.timeout(60)
TEAM = TenantId("team")
LONG_S = 30.0


class Direct:
    """A connection to the master that is a call. Messages are encoded as on a real one."""

    def __init__(self, master: ContentCopies) -> None:
        self._methods: dict[str, Any] = {
            "Fresh": master.fresh,
            "Page": master.page,
            "Piece": master.piece,
            "Offered": master.offered,
            "Put": master.put,
        }
        self.is_cut = False

    async def call(self, method: str, message: msgspec.Struct, answer: type[Any]) -> Any:
        if self.is_cut:
            raise MasterGone("cut")
        await asyncio.sleep(0)
        sent = msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=type(message))
        return msgspec.msgpack.decode(msgspec.msgpack.encode(await self._methods[method](sent)), type=answer)

    async def close(self) -> None:
        pass


def scheduler(folder: Path, **limits: Any) -> ContentCopies:
    return ContentCopies(ContentStore(folder, ContentLimits(**limits)))


async def stored(copies: ContentCopies, content: bytes, *, days_ago: int = 0) -> ContentKey:
    digest = hashlib.sha256(content).hexdigest()
    arrival = copies.store.begin(TEAM, digest, len(content), frozenset())
    arrival.write(content)
    arrival.finish()
    await asyncio.sleep(0)
    key = key_of(TEAM, digest)
    if days_ago:
        kept = copies.store._kept[key]
        kept.used_s = time.time() - days_ago * 86_400
    return key


def has(copies: ContentCopies, key: ContentKey) -> bool:
    return bool(copies.store.described([key]))


def content_of(copies: ContentCopies, key: ContentKey) -> bytes:
    descriptor = copies.store.open_copy(key)
    assert descriptor is not None
    with os.fdopen(descriptor, "rb") as file:
        return file.read()


@contextlib.asynccontextmanager
async def following(standby: ContentCopies, master: ContentCopies) -> AsyncIterator[Direct]:
    link = Direct(master)
    task = asyncio.create_task(copy_content_for_ever(standby, "b", lambda: link))
    try:
        yield link
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(LONG_S):
        while not condition():  # noqa: ASYNC110 - threads change it
            await asyncio.sleep(0.01)


async def test_both_have_everything_in_the_end(tmp_path) -> None:
    master, standby = scheduler(tmp_path / "a"), scheduler(tmp_path / "b")
    large = os.urandom(2 * PIECE_BYTES + 17)
    old, own = await stored(master, large), await stored(standby, large[::-1])
    empty = await stored(master, b"")
    async with master.leading(), following(standby, master):
        await until(lambda: has(standby, old) and has(standby, empty) and has(master, own))
        assert (content_of(standby, old), content_of(master, own)) == (large, large[::-1])
        fresh = await stored(master, b"fresh")
        await master.until_copied([fresh], LONG_S)
        assert content_of(standby, fresh) == b"fresh"
        assert master.release is not None
        assert (master.release.waiting, master.release.one_copy) == (0, 0)


async def test_a_submit_waits_for_the_copy_and_not_for_ever(tmp_path) -> None:
    master, standby = scheduler(tmp_path / "a"), scheduler(tmp_path / "b")
    async with master.leading():
        key = await stored(master, b"x")
        assert master.release is not None
        await master.until_copied([key], 0.0)
        assert master.release.is_waiting(key), "the patience ended first"
        waiting = asyncio.create_task(master.until_copied([key], LONG_S))
        async with following(standby, master):
            await waiting
        assert not master.release.is_waiting(key)
        assert has(standby, key)


async def test_a_lone_master_goes_on_and_counts_it(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(copies_module, "LONE_AFTER_S", 0.0)
    master = scheduler(tmp_path / "a")
    async with master.leading():
        key = await stored(master, b"x")
        await master.until_copied([key], LONG_S)
        assert master.release is not None
        assert master.release.one_copy == 1


async def test_a_standby_without_room_says_so(tmp_path) -> None:
    master, standby = scheduler(tmp_path / "a"), scheduler(tmp_path / "b", max_bytes=3)
    async with master.leading(), following(standby, master):
        key = await stored(master, b"too large")
        await master.until_copied([key], LONG_S)
        assert master.release is not None
        assert (master.release.one_copy, has(standby, key)) == (1, False)
        small = await stored(master, b"ok")
        await until(lambda: has(standby, small))


async def test_content_that_expired_is_not_brought_back(tmp_path) -> None:
    master, standby = scheduler(tmp_path / "a"), scheduler(tmp_path / "b")
    expired, kept = await stored(standby, b"old", days_ago=8), await stored(standby, b"young", days_ago=6)
    async with master.leading(), following(standby, master):
        await until(lambda: has(master, kept))
        assert not has(master, expired)
    assert master.store.described([kept]) == standby.store.described([kept]), "with the time of its last use"
    master.store.expire(frozenset())
    assert has(master, kept)


async def test_a_later_use_is_told_to_the_standby(tmp_path) -> None:
    master, standby = scheduler(tmp_path / "a"), scheduler(tmp_path / "b")
    key = await stored(master, b"x")
    await stored(standby, b"x", days_ago=5)
    async with master.leading(), following(standby, master):
        await until(lambda: master.store.described([key]) == standby.store.described([key]))
    assert has(standby, key)


async def test_a_connection_that_breaks_leaves_nothing_partial(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("dgpu.service.content.copying._RETRY_S", 0.01)
    master, standby = scheduler(tmp_path / "a"), scheduler(tmp_path / "b")
    content = os.urandom(3 * PIECE_BYTES)
    key = await stored(master, content)
    async with master.leading(), following(standby, master) as link:
        pieces, piece = [], link._methods["Piece"]

        async def break_once(ask: Any) -> Any:
            pieces.append(ask.offset)
            if len(pieces) == 2:
                raise MasterGone("broken")
            return await piece(ask)

        link._methods["Piece"] = break_once
        await until(lambda: has(standby, key))
        assert pieces[:3] == [0, PIECE_BYTES, 0]
    assert content_of(standby, key) == content
    assert not list((tmp_path / "b" / "incoming").iterdir())


async def test_a_large_store_is_compared_page_by_page_and_new_content_goes_first(
    tmp_path, monkeypatch
) -> None:
    """One message with all keys would be too large some day, and a submit would wait for the whole comparison."""
    monkeypatch.setattr(words, "PAGE", 3)
    master, standby = scheduler(tmp_path / "a"), scheduler(tmp_path / "b")
    keys = [await stored(master, b"%d" % number) for number in range(12)]
    asked: list[str] = []

    class Watched(Direct):
        async def call(self, method: str, message: msgspec.Struct, answer: type[Any]) -> Any:
            if isinstance(message, words.FreshAsk):
                assert len(message.held) <= 2 * words.PAGE
            asked.append(method)
            if asked.count("Page") == 2 and asked[-1] == "Page":
                keys.append(await stored(master, b"fresh"))
            return await super().call(method, message, answer)

    async with master.leading():
        copying = asyncio.create_task(Copying(standby, "b", Watched(master)).run())
        await until(lambda: copying.done() or all(has(standby, key) for key in keys))
        assert not copying.done(), copying.exception()
        copying.cancel()
        await asyncio.gather(copying, return_exceptions=True)
    assert list(standby.store._kept).index(keys[-1]) < 9, "before the pages that were still to come"
