"""An agent with two schedulers: real gRPC, a real keeper, real processes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dgpu.agent.epoch import Joined, JoinedFile
from dgpu.agent.host import serve_agent
from integration.agent.agent_child import options
from integration.agent.scheduling import ScriptedScheduler, start, until

pytestmark = pytest.mark.slow


@contextlib.asynccontextmanager
async def agent(directory: Path, *schedulers: ScriptedScheduler, **facts: Any) -> AsyncIterator[None]:
    stop = asyncio.Event()
    addresses = tuple(f"127.0.0.1:{scheduler.port}" for scheduler in schedulers)
    facts = {"stop_tasks": True, "grace_ms": 2_000, "addresses": addresses} | facts
    serving = asyncio.create_task(serve_agent(options(directory, 0, **facts), stop=stop))
    try:
        yield
    finally:
        stop.set()
        await serving


async def test_a_task_survives_the_move_to_the_standby_that_took_over(tmp_path) -> None:
    async with (
        ScriptedScheduler(epoch=1, nonce="a") as first,
        ScriptedScheduler(epoch=2, nonce="b", is_standby=True) as second,
        agent(tmp_path, second, first),
    ):
        await first.order(start(1, "while [ ! -e go ]; do sleep 0.05; done; echo done; exit 5"))
        await until(lambda: 1 in first.started)
        await first.close()
        await until(lambda: len(second.registrations) >= 2)
        second.is_standby = False
        (tmp_path / "tasks" / "task-101.1" / "go").touch()
        (finished,) = await until(lambda: second.finished.get(1))
        assert finished.exit_code == 5
        assert [lease.lease_id for lease in second.registrations[-1].leases] == [1]
        assert JoinedFile(tmp_path).joined == Joined(epoch=2, nonce="b")
        chunks = await until(lambda: second.chunks.get(1))
        assert b"".join(chunk.data for chunk in chunks) == b"done\n"


async def test_an_old_master_that_wakes_is_not_obeyed(tmp_path) -> None:
    """It answers at once and would welcome the node. The epoch that this machine has obeyed is on disk."""
    JoinedFile(tmp_path).save(Joined(epoch=2, nonce="b"))
    async with (
        ScriptedScheduler(epoch=1, nonce="a") as old,
        ScriptedScheduler(epoch=2, nonce="b") as new,
    ):
        await new.close()
        async with agent(tmp_path, old, new):
            await until(lambda: len(old.registrations) >= 3)
            assert not old.heartbeats
            await new.open()
            await new.order(start(1, "exit 0"))
            await until(lambda: new.finished.get(1))
            assert not old.heartbeats
    assert JoinedFile(tmp_path).joined == Joined(epoch=2, nonce="b")


async def test_the_same_epoch_of_another_scheduler_is_not_obeyed(tmp_path) -> None:
    JoinedFile(tmp_path).save(Joined(epoch=2, nonce="b"))
    async with ScriptedScheduler(epoch=2, nonce="c") as copy, agent(tmp_path, copy):
        await until(lambda: len(copy.registrations) >= 2)
        assert not copy.heartbeats
    assert JoinedFile(tmp_path).joined == Joined(epoch=2, nonce="b")
