"""Questions to the follower: it answers from all committed groups, and forecasts starts by itself."""

from __future__ import annotations

import asyncio
import os
import signal

import msgspec
import pytest

from building import cluster, node, run_pass, task
from dgpu.core.execute import execute
from dgpu.core.state import ClusterState
from dgpu.service.follower.link import FollowerAway, FollowerLink
from dgpu.wire.foresight_answers import Change, WhatifAnswer
from dgpu.wire.questions import Draining, Hastening
from unit.journal.samples import write_journal

PATIENCE_S = 60


async def until(condition) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - another process changes it
            await asyncio.sleep(0.01)


@pytest.fixture
def groups(monkeypatch) -> list:
    """The events of a small story: a node, a task on it, two that wait."""
    events: list = []

    def kept(state: ClusterState, command):
        decided = execute(state, command)
        if isinstance(decided, tuple) and decided:
            events.append(decided)
        return decided

    monkeypatch.setattr("building.execute", kept)
    state = cluster(node("n1", gpus=2), task(2, timeout_ms=60_000), task(1, timeout_ms=60_000), task(2))
    run_pass(state)
    return events


async def test_it_answers_from_all_that_is_committed_and_names_the_index(tmp_path, groups) -> None:
    write_journal(tmp_path, groups)
    link = FollowerLink(tmp_path)
    link.start(committed=1)
    await until(lambda: link.seen_index == 1)
    link._committed = len(groups)  # committed, and the follower was not told yet
    raw = await link.ask(Draining(node_id="n1"), at=0, patience_s=PATIENCE_S)
    told = msgspec.json.decode(raw, type=WhatifAnswer)
    assert told.journal_index == len(groups)
    assert [delay.task_id for delay in told.delays] == ["task-2", "task-3"]
    raw = await link.ask(Hastening(task_id=3), at=0, patience_s=PATIENCE_S)
    changes = msgspec.json.decode(raw, type=list[Change])
    assert changes == []  # the one ahead of it would take whatever came free
    await link.stop()


async def test_forecasts_come_by_themselves(tmp_path, groups) -> None:
    write_journal(tmp_path, groups)
    link = FollowerLink(tmp_path)
    link.start(committed=len(groups))
    await until(lambda: link.forecasts.index == len(groups))
    assert link.forecasts.expected(2, now=0) is not None
    assert link.forecasts.expected(1, now=0) is None
    await link.stop()


async def test_whoever_asks_a_dead_follower_hears_so_at_once(tmp_path, groups) -> None:
    write_journal(tmp_path, groups)
    link = FollowerLink(tmp_path)
    with pytest.raises(FollowerAway):
        await link.ask(Draining(node_id="n1"), at=0, patience_s=PATIENCE_S)
    link.start(committed=len(groups))
    await until(lambda: link.seen_index == len(groups))
    os.kill(link.pid, signal.SIGSTOP)
    asking = asyncio.ensure_future(link.ask(Draining(node_id="n1"), at=0, patience_s=PATIENCE_S))
    await asyncio.sleep(0)
    os.kill(link.pid, signal.SIGKILL)
    with pytest.raises(FollowerAway):
        await asking
    await until(lambda: link.restarts == 1 and link.pid is not None)
    await link.ask(Draining(node_id="n1"), at=0, patience_s=PATIENCE_S)
    await link.stop(final_snapshot=False)


async def test_who_asks_too_much_at_once_is_told_to_come_back(tmp_path, groups) -> None:
    write_journal(tmp_path, groups)
    link = FollowerLink(tmp_path)
    link.start(committed=len(groups))
    await until(lambda: link.seen_index == len(groups))
    asked = [link.ask(Draining(node_id="n1"), at=0, patience_s=PATIENCE_S) for _ in range(100)]
    told = await asyncio.gather(*asked, return_exceptions=True)
    assert sum(isinstance(each, FollowerAway) for each in told) == 36
    assert sum(isinstance(each, bytes) for each in told) == 64
    await link.stop(final_snapshot=False)
