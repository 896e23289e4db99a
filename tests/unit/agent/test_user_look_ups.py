"""A directory service that does not answer: tasks of its users fail on this node, and nothing else waits for it."""

from __future__ import annotations

import asyncio
import os
import pwd
import threading
from collections.abc import Coroutine, Sequence
from typing import Any

import pytest

from dgpu.agent.accounts import Accounts, IsolationOptions
from dgpu.agent.run import user_look_ups
from dgpu.agent.run.runner import RunEnd, RunnerWord, RunOrder, RunsEnded
from dgpu.agent.run.user_look_ups import UserLookUps
from dgpu.core.model.ids import LeaseId, NodeId, TaskId
from dgpu.core.model.task import Outcome

N1 = NodeId("n1")
LONG_S = 60.0


class Bench:
    def __init__(self, place) -> None:
        self.accounts = Accounts(place, place / "tasks", IsolationOptions(min_uid=1))
        self.spawned: list[int] = []
        self.ended: list[RunEnd] = []
        self.news = asyncio.Event()
        self.users = UserLookUps(self.accounts, spawn=self.spawn, say=self.say)

    def spawn(self, _: NodeId, orders: Sequence[RunOrder]) -> None:
        self.spawned += [order.lease_id for order in orders]
        self.news.set()

    def say(self, _: NodeId, words: Sequence[RunnerWord]) -> None:
        self.ended += [end for word in words if isinstance(word, RunsEnded) for end in word.ended]
        self.news.set()

    def start(self, *orders: RunOrder) -> None:
        self.spawn(N1, self.users.pass_known(N1, orders))
        self.news.clear()


def order(lease: int, tenant: str, user: str | None) -> RunOrder:
    return RunOrder(lease_id=LeaseId(lease), task_id=TaskId(lease), attempt=1, tenant=tenant, user=user)


class HangingDirectory:
    def __init__(self, monkeypatch) -> None:
        self.asked, self.answer = threading.Event(), threading.Event()
        known = pwd.getpwnam

        def getpwnam(name: str) -> Any:
            if name != "daemon":
                self.asked.set()
                assert self.answer.wait(LONG_S)
            return known("daemon")

        monkeypatch.setattr(pwd, "getpwnam", getpwnam)


@pytest.fixture
def directory(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)  # only the question is answered here; no user is changed
    found = HangingDirectory(monkeypatch)
    yield found
    found.answer.set()


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, LONG_S))


def test_orders_of_other_users_start_while_a_look_up_hangs(tmp_path, directory) -> None:
    async def story() -> None:
        bench = Bench(tmp_path)
        bench.start(order(1, "slow", "ldap-user"), order(2, "b", "daemon"), order(3, "c", None))
        assert bench.spawned == [3]
        await bench.news.wait()
        assert bench.spawned == [3, 2]
        bench.start(order(4, "b", "daemon"))  # known by now: at once
        assert bench.spawned == [3, 2, 4]
        assert directory.asked.wait(LONG_S)
        bench.start(order(5, "slow", "ldap-user"))
        directory.answer.set()
        await bench.news.wait()
        assert bench.spawned == [3, 2, 4, 1, 5]
        assert bench.ended == []

    run(story())


def test_an_order_without_an_answer_fails_on_this_node_with_the_reason(
    tmp_path, directory, monkeypatch
) -> None:
    monkeypatch.setattr(user_look_ups, "LOOK_UP_SECONDS", 0.05)

    async def story() -> None:
        bench = Bench(tmp_path)
        bench.start(order(1, "slow", "ldap-user"))
        await bench.news.wait()
        assert [(end.lease_id, end.outcome) for end in bench.ended] == [(1, Outcome.NODE_FAULT)]
        assert "tenant slow (ldap-user) got no answer" in bench.ended[0].error
        directory.answer.set()
        while bench.accounts.known("slow", "ldap-user") is None:  # noqa: ASYNC110 - a thread finds it
            await asyncio.sleep(0.01)
        assert bench.spawned == []

    run(story())


def test_a_stopped_order_never_starts(tmp_path, directory) -> None:
    async def story() -> None:
        bench = Bench(tmp_path)
        bench.start(order(1, "slow", "ldap-user"), order(2, "slow", "ldap-user"), order(3, "other", "x"))
        bench.users.withdraw([LeaseId(1), LeaseId(9)])
        assert [(end.lease_id, end.outcome) for end in bench.ended] == [(1, Outcome.STOPPED)]
        bench.news.clear()
        directory.answer.set()
        while sorted(bench.spawned) != [2, 3]:
            await bench.news.wait()
            bench.news.clear()
        assert len(bench.ended) == 1

    run(story())


def test_orders_of_a_lost_keeper_never_start(tmp_path, directory) -> None:
    """The next keeper lists no such run, and the scheduler may have placed the task elsewhere."""

    async def story() -> None:
        bench = Bench(tmp_path)
        bench.start(order(1, "slow", "ldap-user"))
        bench.users.clear()
        directory.answer.set()
        await bench.news.wait()
        assert (bench.spawned, bench.ended) == ([], [])

    run(story())
