"""The SDK against the real service, and against a service whose answers get lost."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import pytest

from dgpu.client import AsyncClient, BadRequest, Client, NotFound, Refused, Unreachable, WaitedTooLong
from lossy_proxy import LossyProxy
from rest_world import TOKEN


@pytest.fixture
def client(world):
    with Client(world.url) as connected:
        yield connected


@pytest.fixture
def lossy(world) -> Iterator[LossyProxy]:
    proxy = LossyProxy(world.port, losses=2)
    yield proxy
    proxy.close()


def test_a_task_from_submit_to_its_end(world, client) -> None:
    world.add_node()
    submitted = client.submit(command="true", name="x", gpu_count=1, env={"A": "1"})
    assert client.get(submitted.task_id).status == "running"
    with pytest.raises(WaitedTooLong):
        client.wait(submitted.task_id, timeout_seconds=0.05)
    world.finish_running()
    (ended,) = client.wait(submitted.task_id, timeout_seconds=30)
    assert (ended.status, ended.exit_code) == ("success", 0)
    assert [event.type for event in client.task_events(submitted.task_id)][-1] == "task_finished"


def test_an_answer_that_got_lost_does_not_submit_twice(world, lossy) -> None:
    with Client(lossy.url) as client:
        assert client.submit(command="x").task_id == "task-1"
    assert lossy.losses == 0
    lossy.losses = 2
    with Client(lossy.url) as client:
        assert client.submit_many([{"command": "a"}, {"command": "b"}]) == ["task-2", "task-3"]
    lossy.losses = 1
    with Client(lossy.url) as client:
        assert client.submit_copies(2, command="c") == ["task-4", "task-5"]
    assert world.read(lambda state: len(state.tasks)) == 5


def test_the_async_client_does_not_submit_twice_either(world, lossy) -> None:
    async def run() -> None:
        async with AsyncClient(lossy.url) as client:
            assert (await client.submit(command="x")).task_id == "task-1"

    asyncio.run(run())
    assert lossy.losses == 0
    assert world.read(lambda state: len(state.tasks)) == 1


def test_a_cancel_whose_answer_got_lost_is_repeated_without_harm(world, client, lossy) -> None:
    client.submit(command="x")
    with Client(lossy.url) as other:
        assert other.cancel("task-1") == 0  # the first try did it
    assert client.get(1).status == "cancelled"


def test_lists_run_over_pages(world, client) -> None:
    client.submit_copies(25, command="x")
    assert [task.task_id for task in client.list(page_size=10)] == [f"task-{i}" for i in range(25, 0, -1)]
    assert len(list(client.list(status="pending", tenant="default"))) == 25
    assert client.page(limit=1, status="pending").total == 25


def test_more_than_a_batch_holds_is_sent_in_parts(world, client) -> None:
    ids = client.submit_many({"command": "x"} for _ in range(10_050))
    assert len(set(ids)) == 10_050
    assert client.cancel_where(status="pending") == 10_050


def test_a_refused_part_names_what_was_accepted_before_it(world, client) -> None:
    tasks = [{"command": "x"}] * 10_000 + [{"command": ""}]
    with pytest.raises(BadRequest) as caught:
        client.submit_many(tasks)
    assert len(caught.value.submitted) == 10_000


def test_errors_say_what_kind_they_are(world, client) -> None:
    world.add_node(gpus=1)
    with pytest.raises(NotFound):
        client.get("task-99")
    with pytest.raises(BadRequest) as bad:
        client.submit(command="x", gpu_count=-1)
    assert bad.value.errors[0].path == "gpu_count"
    with pytest.raises(Refused) as never:
        client.submit(command="x", gpu_count=9)
    assert never.value.code == "never_fits"
    with pytest.raises(NotFound):
        client.logs("task-99")


def test_nobody_there_is_unreachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(Unreachable, match=str(port)):
        Client(f"http://127.0.0.1:{port}", retries=1).health()

    async def run() -> None:
        async with AsyncClient(f"http://127.0.0.1:{port}", retries=1) as client:
            await client.health()

    with pytest.raises(Unreachable, match=str(port)):
        asyncio.run(run())


def test_the_cluster(world, client) -> None:
    world.add_node("n1", gpus=2)
    assert client.gpus().idle == 2
    assert client.drain("n1", reason="fan").drain_reason == "fan"
    assert client.nodes().nodes[0].status == "draining"
    assert client.resume("n1").status == "ready"
    with pytest.raises(Refused):
        client.give_up("n1")
    with pytest.raises(Refused):
        client.remove_node("n1")
    client.submit_copies(4, command="x")
    assert client.queue().total == 2
    assert client.why("task-4").position == 2
    assert client.health().status == "ok"
    assert client.ready().ready


def test_events_and_logs_are_streamed(world, client) -> None:
    events = client.events()
    client.submit(command="x")
    event = next(events)
    while event.type != "task_submitted":
        event = next(events)
    assert event.facts["first_task_id"] == "task-1"
    events.close()
    again = client.events(after=str(int(event.id) - 1))
    assert next(again).type == "task_submitted"
    again.close()
    client.cancel(1)
    assert client.logs(1) == ""
    assert list(client.stream_logs(1)) == []


def test_the_async_client_hears_events(world) -> None:
    async def run() -> None:
        async with AsyncClient(world.url) as client:
            events = client.events()
            first = asyncio.ensure_future(anext(events))
            async with asyncio.timeout(60):
                while not first.done():  # nobody says when the stream is open
                    await client.submit(command="x")
                    await asyncio.sleep(0.02)
            assert first.result().type == "task_submitted"
            await events.aclose()  # type: ignore[attr-defined]

    asyncio.run(run())


def test_the_async_client_does_the_same(world) -> None:
    async def run() -> None:
        async with AsyncClient(world.url) as client:
            await client.submit(command="x")
            assert await client.submit_many([{"command": "y"}]) == ["task-2"]
            assert await client.submit_copies(2, command="z") == ["task-3", "task-4"]
            assert [task.task_id async for task in client.list(page_size=3)] == [
                f"task-{i}" for i in range(4, 0, -1)
            ]
            assert await client.cancel(1) == 1
            assert await client.cancel_where(status="pending") == 3
            (ended,) = await client.wait(1, timeout_seconds=30)
            assert ended.status == "cancelled"
            assert await client.logs(1) == ""
            assert [piece async for piece in client.stream_logs(1)] == []
            assert (await client.why(1)).status == "cancelled"
            assert (
                (await client.gpus()).total
                == (await client.nodes()).total
                == (await client.queue()).total
                == 0
            )
            assert (await client.health()).status == "ok"
            assert (await client.ready()).ready
            with pytest.raises(NotFound):
                await client.drain("nowhere")

    asyncio.run(run())


def test_a_token_is_sent(world) -> None:
    """Root needs no token; the only code that reads it shows that it arrives."""
    seen: list[bytes | None] = []
    real = world.access.enter
    world.access.enter = lambda method, path, headers, peer: (
        seen.append(headers.get(b"authorization")),
        real(method, path, headers, peer),
    )[1]
    Client(world.url, token=TOKEN).page()
    assert seen == [f"Bearer {TOKEN}".encode()]


def test_a_task_is_submitted_once_more_though_the_answer_gets_lost(world) -> None:
    world.add_node("n1", 1)
    with Client(world.url) as client:
        first = client.submit(command="true", env={"K": "v"}).task_id
        world.finish_running()
        proxy = LossyProxy(world.port, losses=1)
        with contextlib.closing(proxy), Client(proxy.url) as lossy:
            again = lossy.retry(first)
        assert again.retry_of == first
        assert [task.task_id for task in client.list()] == [again.task_id, first]
        assert client.get(first).attempts[0].node == "n1"
        assert [task.task_id for task in client.list(node="n1", sort="oldest")] == [first, again.task_id]
        assert client.board()["counts"]["running"] == 1
        with contextlib.closing(client.board_events()) as events:
            assert next(events).facts["nodes"]["id"] == ["n1"]
        assert client.session().access == "user"
        assert client.session_code().url_path.startswith("/#code=")

    async def look() -> None:
        async with AsyncClient(world.url) as asking:
            assert (await asking.board())["nodes"]["id"] == ["n1"]
            with pytest.raises(Refused) as refused:
                await asking.retry(again.task_id)
            assert refused.value.code == "not_ended"

    asyncio.run(look())
