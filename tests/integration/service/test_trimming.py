"""The engine keeps a snapshot and the groups after it, and a scheduler that was away for long returns by itself."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dgpu.journal.engine import StateDigest
from dgpu.journal.memory_engine import SharedState
from dgpu.service.history.reader import HISTORY_NAME
from dgpu.service.options import TrimRules
from integration.service.members import DEADLINE_S, Member

pytestmark = pytest.mark.timeout(180)

RULES = TrimRules(look_s=0.05, max_groups=20)
TASK = {"command": "true"}


def member(tmp_path: Path, shared: SharedState, name: str, trim: TrimRules = RULES) -> Member:
    made = Member(tmp_path, shared, name, snapshot_interval_ms=200)
    among = msgspec.structs.replace(made.options.shared, trim=trim, digest_groups=10)
    made.options = msgspec.structs.replace(made.options, shared=among)
    return made


async def submit(master: Member, count: int) -> None:
    for _ in range(count):
        assert (await master.ask("/api/v1/tasks", TASK)).status == 201


async def submit_until_floor(master: Member, shared: SharedState, above: int) -> int:
    """Returns the number of tasks. The floor follows behind the last snapshot but one."""
    count = 0
    async with asyncio.timeout(DEADLINE_S):
        while shared.state.floor <= above:
            await submit(master, 10)
            count += 10
    return count


async def until(condition: Any) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 - another thread changes the engine
            await asyncio.sleep(0.02)


async def until_total(member: Member, total: int) -> None:
    for _ in range(1_200):
        told = await member.ask("/api/v1/tasks")
        if told.status == 200 and told.body["total"] == total:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"expected {total} tasks: {told}")


async def test_a_standby_that_was_off_for_long_returns_by_itself(tmp_path: Path) -> None:
    shared = SharedState()
    first, second = member(tmp_path, shared, "a"), member(tmp_path, shared, "b")
    try:
        await first.start()
        await first.until_role("master")
        await second.start()
        await submit(first, 5)
        await until_total(second, 5)
        await second.stop()
        away_at = shared.state.head.index
        later = await submit_until_floor(first, shared, away_at + 1)
        assert len(shared.state._records) <= shared.state.head.index - shared.state.floor + 1
        await second.start()
        await until_total(second, 5 + later)
        assert list((tmp_path / "b").glob("aside-before-*"))
        await until_history(second)
        assert stored_tasks(tmp_path / "b") == 5 + later, "the history goes on with its earlier tasks"
        await first.stop()
        await second.until_role("master")
        await submit(second, 1)
        await until_total(second, 6 + later)
    finally:
        for each in (first, second):
            await each.end()


def stored_tasks(directory: Path) -> int:
    with contextlib.closing(sqlite3.connect(directory / HISTORY_NAME)) as history:
        return int(history.execute("SELECT count(*) FROM tasks").fetchone()[0])


async def until_history(member: Member) -> None:
    """The follower of the returned scheduler works: it bridges the groups that it never saw."""
    for _ in range(1_200):
        told = await member.ask("/ready")
        if told.body["history_lag"] == 0:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"the history does not catch up: {told}")


async def test_a_standby_that_was_cut_off_for_long_fetches_the_snapshot(tmp_path: Path) -> None:
    """Its process runs on. It discards its state and begins again."""
    shared = SharedState()
    first, second = member(tmp_path, shared, "a"), member(tmp_path, shared, "b")
    try:
        await first.start()
        await first.until_role("master")
        await second.start()
        await submit(first, 5)
        await until_total(second, 5)
        second.engine.is_down = True
        away_at = shared.state.head.index
        later = await submit_until_floor(first, shared, away_at + 1)
        second.engine.is_down = False
        await until_total(second, 5 + later)
        assert second.serving is not None
        assert not second.serving.done()
    finally:
        for each in (first, second):
            await each.end()


async def test_a_new_scheduler_begins_with_the_snapshot(tmp_path: Path) -> None:
    shared = SharedState()
    first, second = member(tmp_path, shared, "a"), member(tmp_path, shared, "b")
    try:
        await first.start()
        await first.until_role("master")
        count = await submit_until_floor(first, shared, 10)
        await second.start()
        await until_total(second, count)
        assert not list((tmp_path / "b").glob("aside-*")), "it had nothing of its own"
    finally:
        for each in (first, second):
            await each.end()


async def test_a_standby_with_another_state_says_so_and_does_not_lead(tmp_path: Path) -> None:
    shared = SharedState()
    untrimmed = TrimRules()  # a standby that begins at a snapshot has not computed the state before it
    first, second = (member(tmp_path, shared, name, untrimmed) for name in "ab")
    try:
        await first.start()
        await first.until_role("master")
        await second.start()
        await submit(first, 12)
        await until(lambda: shared.state.digest is not None)
        index = shared.state.digest.index
        assert index % 10 == 0
        await second.stop()
        shared.state.digest = StateDigest(index + 10, "another state")
        first.engine.publish_digest = lambda *_: None
        await submit(first, index + 10 - shared.state.head.index)
        await second.start()
        for _ in range(600):
            told = await second.ask("/ready")
            if "this standby has the state" in told.body["engine"]:
                break
            await asyncio.sleep(0.1)
        assert "the master another stat" in told.body["engine"]
        await first.stop()
        await asyncio.sleep(3)
        assert second.at[-1].role == "standby"
        assert shared.state.leader(shared.now_ms()) is None
    finally:
        for each in (first, second):
            await each.end()
