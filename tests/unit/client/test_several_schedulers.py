"""Both clients against a master and a standby, over real HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dgpu.client import AsyncClient, Client, NotMaster, Unreachable
from stub_schedulers import StubScheduler, stub_schedulers


@pytest.fixture
def pair() -> Iterator[list[StubScheduler]]:
    """The standby is the first address."""
    with stub_schedulers("standby", "master") as servers:
        servers[0].master = servers[1].url
        yield servers


@pytest.fixture
def nowhere() -> str:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return f"http://127.0.0.1:{taken.getsockname()[1]}"


@pytest.fixture(params=["sync", "async"])
def call(request) -> Callable[..., Any]:
    """Makes calls with one client: each is a name and its arguments. Streams are read to their end."""

    def blocking(servers, *calls, **facts):
        with Client(servers, **facts) as client:
            return [
                list(got) if name in {"events", "stream_logs"} else got
                for name, given in calls
                for got in [getattr(client, name)(**given)]
            ]

    async def awaited(servers, *calls, **facts):
        async with AsyncClient(servers, **facts) as client:
            found = []
            for name, given in calls:
                got = getattr(client, name)(**given)
                found.append([each async for each in got] if name in {"events", "stream_logs"} else await got)
            return found

    if request.param == "sync":
        return blocking
    return lambda *given, **facts: asyncio.run(awaited(*given, **facts))


def urls(*servers: StubScheduler) -> str:
    return ",".join(server.url for server in servers)


def paths(server: StubScheduler) -> list[str]:
    return [path for _, path, _ in server.requests]


def test_reads_go_to_the_first_scheduler_and_writes_to_the_master(pair, call) -> None:
    standby, master = pair
    call(urls(*pair), ("nodes", {}), ("submit", {"command": "x"}), ("get", {"task_id": "task-1"}))
    assert paths(standby) == ["/api/v1/nodes", "/api/v1/tasks"]
    assert paths(master) == ["/api/v1/tasks", "/api/v1/tasks/task-1"]


def test_a_dead_first_address_is_passed_over(pair, call, nowhere) -> None:
    _, master = pair
    call([nowhere, master.url], ("nodes", {}), ("submit", {"command": "x"}))
    assert paths(master) == ["/api/v1/nodes", "/api/v1/tasks"]


def test_a_submit_whose_answer_was_lost_with_its_master_is_not_done_twice(pair, call) -> None:
    """The other scheduler took over and has the same journal: it knows the key."""
    first, second = pair
    first.role, second.role = "master", "master"
    first.loses = 1
    (submitted,) = call(urls(first, second), ("submit", {"command": "x"}))
    assert submitted.task_id == "task-1"
    assert len(first.keys) == 1
    assert paths(first) == paths(second) == ["/api/v1/tasks"]


def test_a_token_whose_answer_was_lost_is_not_created_twice(pair, call) -> None:
    first, second = pair
    first.role = "master"
    first.loses = 1
    with pytest.raises(Unreachable, match="not known whether the request was carried out"):
        call(urls(first, second), ("create_token", {"name": "ci"}))
    assert (first.tokens, second.tokens) == (1, 0)


def test_a_standby_that_becomes_master_takes_the_write(pair, call) -> None:
    standby, master = pair
    master.shutdown()
    master.server_close()
    standby.master = ""
    refusals: list[object] = []
    real = standby.requests.append

    def note(request: tuple[str, str, dict[str, str]]) -> None:
        real(request)
        refusals.append(request)
        if len(refusals) == 6:  # more than the retries of a call
            standby.role = "master"

    standby.requests = Notes(note)
    (submitted,) = call(urls(*pair), ("submit", {"command": "x"}), retries=1)
    assert submitted.task_id == "task-1"
    assert len({headers["Idempotency-Key"] for _, _, headers in refusals}) == 1


class Notes(list):
    def __init__(self, note: Callable[[Any], None]) -> None:
        super().__init__()
        self.append = note  # type: ignore[method-assign]


def test_a_token_is_never_sent_to_an_address_that_was_not_given(pair, call) -> None:
    standby, master = pair
    with pytest.raises(NotMaster, match=f"Add it to the addresses: {standby.url},{master.url}"):
        call(standby.url, ("submit", {"command": "x"}), token="s3cret")
    assert master.requests == []
    assert standby.requests[0][2]["Authorization"] == "Bearer s3cret"


def test_the_error_lists_each_address_and_its_reason(pair, call, nowhere) -> None:
    standby, _ = pair
    standby.master = ""
    with pytest.raises(Unreachable) as caught:
        call([nowhere, standby.url], ("submit", {"command": "x"}), timeout_seconds=3)
    text = str(caught.value)
    assert text.startswith("No master answers: ")
    assert f"{nowhere} (" in text
    assert f"{standby.url} (standby)" in text


def test_a_task_that_the_standby_does_not_know_yet_is_read_from_the_master(pair, call) -> None:
    standby, master = pair
    master.tasks = {"task-1"}
    (task,) = call(urls(*pair), ("get", {"task_id": "task-1"}))
    assert task.task_id == "task-1"
    assert len(standby.requests) == len(master.requests) == 1


def event(index: int, kind: str, *, closes: bool = True) -> bytes:
    id_line = f"id: {index}\n" if closes else ""
    return f'event: {kind}\n{id_line}data: {{"index":{index}}}\n\n'.encode()


def test_events_continue_at_another_scheduler_without_a_gap_or_a_repeat(pair) -> None:
    """The standby is one group behind; the master died within a group."""
    standby, master = pair
    master.streams = [[event(7, "a"), event(8, "b", closes=False)], []]
    standby.streams = [
        [event(7, "a"), event(8, "b", closes=False), event(8, "c"), event(9, "d")],
        *([[]] * 9),
    ]
    with Client(urls(master, standby)) as client:
        events = client.events()
        master.shutdown()
        master.server_close()
        assert [next(events).type for _ in range(4)] == ["a", "b", "c", "d"]
        events.close()
    assert standby.requests[0][2]["Last-Event-ID"] == "7"


def test_followed_output_continues_where_it_broke(pair, call) -> None:
    """A stream begins with the first byte of the output; the second one breaks before the place is reached."""
    first, _ = pair
    first.streams = [[b"one\n", b"two"], [b"o"], [b"one\ntwo\nthree\n"]]
    (pieces,) = call(first.url, ("stream_logs", {"task_id": 1, "follow": True}))
    assert b"".join(pieces) == b"one\ntwo\nthree\n"


def test_followed_output_continues_at_another_scheduler(pair) -> None:
    first, second = pair
    first.streams, second.streams = [[b"one\n", b"two"], []], [[b"one\ntwo\nthree\n"]]
    with Client(urls(first, second)) as client:
        pieces = client.stream_logs(1, follow=True)
        first.shutdown()
        first.server_close()
        assert b"".join(pieces) == b"one\ntwo\nthree\n"
    assert paths(second) == ["/api/v1/tasks/1/logs?follow=true"]


def test_the_last_lines_are_not_shown_twice(pair, call) -> None:
    first, _ = pair
    first.streams = [[b"two\n"], [b"three\n"]]
    (pieces,) = call(first.url, ("stream_logs", {"task_id": 1, "follow": True, "tail": 1}))
    assert b"".join(pieces) == b"two\nthree\n"
    assert [path.partition("tail=")[2] for path in paths(first)] == ["1", "0"]


def test_output_that_is_not_followed_is_not_begun_again(pair, call) -> None:
    first, _ = pair
    first.streams = [[b"one\n"], []]
    with pytest.raises(Unreachable, match="broke"):
        call(first.url, ("stream_logs", {"task_id": 1}))


def test_output_is_one_text(pair, call) -> None:
    """A character may be cut by the pieces of the network; a byte that is no text must not raise."""
    first, _ = pair
    first.streams = [[b"caf\xc3", b"\xa9 \xff\n"]]
    assert call(first.url, ("logs", {"task_id": 1, "grep": "caf"})) == ["café \ufffd\n"]


def test_the_async_client_continues_events_too(pair) -> None:
    standby, master = pair
    master.streams, standby.streams = [[event(7, "a")], []], [[event(7, "a"), event(8, "b")], [], [], []]

    async def run() -> list[str]:
        async with AsyncClient(urls(master, standby)) as client:
            events = client.events()
            found = [(await anext(events)).type]
            master.shutdown()
            master.server_close()
            found.append((await anext(events)).type)
            await events.aclose()
            return found

    assert asyncio.run(run()) == ["a", "b"]


def test_a_stream_without_retries_ends_with_its_connection(pair, call) -> None:
    first, _ = pair
    first.streams = [[event(1, "a")], [event(2, "b")]]
    with contextlib.suppress(Unreachable):
        call(first.url, ("events", {}), retries=0)
    assert len(first.requests) == 1


def test_the_role_and_the_age_of_an_answer_are_known(pair) -> None:
    standby, _ = pair
    standby.lag_ms = 6_500
    told: list[object] = []
    with Client(urls(*pair), on_answer=told.append) as client:
        client.nodes()
        assert client.answered_by == (standby.url, "standby", 6_500)
    assert told == [(standby.url, "standby", 6_500)]
