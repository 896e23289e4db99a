"""Tasks that left the memory before a scheduler joined are known to that scheduler, too."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dgpu.core.model.ids import TaskId
from dgpu.core.model.settings import Settings
from dgpu.journal.memory_engine import SharedState
from dgpu.service.history.reader import HISTORY_NAME
from dgpu.service.history.writer import remove_history
from dgpu.service.results.file import RESULTS_NAME, ResultLimits, ResultReader, ResultWriter, StoredResult
from integration.service.members import DEADLINE_S, Member
from integration.service.test_trimming import member, submit, submit_until_floor, until, until_history

pytestmark = pytest.mark.timeout(180)

SETTINGS = Settings(keep_finished=0)
PATHS = ("/api/v1/tasks/task-1", "/api/v1/tasks/task-1/events")


def forgetful(tmp_path: Path, shared: SharedState, name: str) -> Member:
    made = member(tmp_path, shared, name)
    made.options = msgspec.structs.replace(made.options, settings=SETTINGS)
    return made


def with_result(member: Member) -> StoredResult:
    """Of a function call that it got before the other scheduler joined."""
    called = StoredResult(
        task_id=TaskId(1),
        at=time.time_ns() // 1_000_000,
        result=b"\x81\xff",
        encoding="msgpack",
        ref="",
        size=2,
        traceback="",
    )
    writer = ResultWriter(member.options.data_dir / RESULTS_NAME, ResultLimits())
    writer.fill([called], called.at)
    writer.close()
    return called


def results_of(member: Member) -> list[StoredResult]:
    reader = ResultReader(member.options.data_dir / RESULTS_NAME)
    try:
        return reader.before(1 << 62, 10)
    finally:
        reader.close()


async def until_answer(member: Member, path: str, wanted: Any) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while True:
            told = await member.ask(path)
            if told.body == wanted:
                return
            await asyncio.sleep(0.1)


def past_tasks(member: Member) -> int:
    with contextlib.closing(sqlite3.connect(member.options.data_dir / HISTORY_NAME)) as history:
        return int(history.execute("SELECT count(*) FROM tasks WHERE forgotten = 1").fetchone()[0])


async def with_past_tasks(master: Member, shared: SharedState) -> dict[str, Any]:
    """Makes cancelled tasks of which only the history knows. Returns what it tells of the first one."""
    await submit(master, 8)
    assert (await master.ask("/api/v1/tasks/cancel", {"status": "pending"})).body == {"cancelled": 8}
    await submit(master, 1)  # tasks are forgotten when the history has a later group
    await until_history(master)
    await until(lambda: past_tasks(master) == 8)
    await submit_until_floor(master, shared, shared.state.head.index)
    return {path: (await master.ask(path)).body for path in PATHS}


async def test_a_scheduler_that_joins_knows_tasks_that_ended_long_before(tmp_path: Path) -> None:
    shared = SharedState()
    first, second = forgetful(tmp_path, shared, "a"), forgetful(tmp_path, shared, "b")
    try:
        called = with_result(first)
        await first.start()
        await first.until_role("master")
        known = await with_past_tasks(first, shared)
        assert known[PATHS[0]]["status"] == "cancelled"
        await second.start()
        for path, answer in known.items():
            await until_answer(second, path, answer)
        total = (await first.ask("/api/v1/tasks?status=cancelled")).body["total"]
        assert (await second.ask("/api/v1/tasks?status=cancelled")).body["total"] == total == 8
        await until(lambda: results_of(second) == [called])
        await first.stop()
        await second.until_role("master")
        for path, answer in known.items():
            await until_answer(second, path, answer)
    finally:
        for each in (first, second):
            await each.end()


async def test_a_standby_gives_the_master_what_only_the_standby_has(tmp_path: Path) -> None:
    """The master took over before it had everything."""
    shared = SharedState()
    first, second = forgetful(tmp_path, shared, "a"), forgetful(tmp_path, shared, "b")
    try:
        await first.start()
        await first.until_role("master")
        known = await with_past_tasks(first, shared)
        await second.start()
        await until_answer(second, PATHS[0], known[PATHS[0]])
        await second.stop()
        await first.stop()
        remove_history(tmp_path / "b" / HISTORY_NAME)
        await second.start()
        await second.until_role("master")
        assert (await second.ask(PATHS[0])).status == 404
        await first.start()
        for path, answer in known.items():
            await until_answer(second, path, answer)
    finally:
        for each in (first, second):
            await each.end()
