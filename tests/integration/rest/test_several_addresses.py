"""The SDK with two addresses and a real scheduler: one address is dead, or both lead to the same journal."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import pytest

from dgpu.client import AsyncClient, Client, Unreachable
from lossy_proxy import LossyProxy


@pytest.fixture
def nowhere() -> str:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return f"http://127.0.0.1:{taken.getsockname()[1]}"


@pytest.fixture
def lossy(world):
    """Does what it is asked and loses the answer."""
    with contextlib.closing(LossyProxy(world.port, losses=1)) as proxy:
        yield proxy


def submitted(world) -> int:
    return world.read(lambda state: len(state.tasks))


def test_one_dead_address_is_not_noticed(world, nowhere) -> None:
    with Client([nowhere, world.url]) as client:
        assert client.submit(command="x").task_id == "task-1"
        assert client.get(1).status == "pending"
        assert client.url == world.url

    async def run() -> None:
        async with AsyncClient(f"{nowhere},{world.url}") as client:
            assert (await client.get(1)).status == "pending"
            assert await client.cancel(1) == 1

    asyncio.run(run())


def test_a_submit_with_an_unknown_outcome_is_repeated_elsewhere_without_a_second_task(world, lossy) -> None:
    with Client([lossy.url, world.url]) as client:
        assert client.submit(command="x").task_id == "task-1"
        assert (lossy.losses, client.url) == (0, world.url)
    assert submitted(world) == 1
    lossy.losses = 1

    async def run() -> None:
        async with AsyncClient([lossy.url, world.url]) as client:
            assert await client.submit_many([{"command": "a"}, {"command": "b"}]) == ["task-2", "task-3"]

    asyncio.run(run())
    assert (lossy.losses, submitted(world)) == (0, 3)


def test_a_token_with_an_unknown_outcome_is_not_created_twice(world, lossy) -> None:
    with (
        Client([lossy.url, world.url]) as client,
        pytest.raises(Unreachable, match="It is not sent again: that could do it twice"),
    ):
        client.create_token("ci", tenants=["default"])
    with Client(world.url) as client:
        assert [token.name for token in client.tokens()] == ["ci"]


def test_events_continue_at_the_other_address(world) -> None:
    with (
        contextlib.closing(LossyProxy(world.port, losses=0)) as proxy,
        Client(f"{proxy.url},{world.url}") as following,
        Client(world.url) as client,
    ):
        events = following.events()
        client.submit(command="a")
        first = next(events)
        proxy.losses = 1_000
        client.submit(command="b")
        second = next(events)
        assert (first.facts["first_task_id"], second.facts["first_task_id"]) == ("task-1", "task-2")
        events.close()
