"""Output and events as they come."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
import time

import pytest

from dgpu.core.model.ids import NodeId, TaskId
from dgpu.service.rest.backend import RestOptions
from dgpu.service.task_output.lines import tail_of
from dgpu.service.task_output.recent import Recent
from dgpu.wire.proto import agent_pb2 as pb
from rest_world import RestWorld


class AgentOutput:
    """The output stream of an agent; the test decides the output of its tasks."""

    def __init__(self, world: RestWorld, node: str = "n1") -> None:
        self._world = world
        self.fetches: list[pb.Fetch] = []
        self.asked = threading.Event()
        self.cancelled = threading.Event()
        self.hung_up = ""
        session_id = world.connect_agent(node)

        async def attach() -> int:
            return world.output.attach(NodeId(node), session_id, self)

        self.link_id = world.run(attach())
        assert not self.hung_up

    def hang_up(self, reason: str, *, fault: bool) -> None:
        del fault
        self.hung_up = reason

    def send(self, message: pb.FromSchedulerOutput) -> None:
        if message.HasField("fetch"):
            self.fetches.append(message.fetch)
            self.asked.set()
        if message.HasField("cancel_fetch"):
            self.cancelled.set()

    def write(self, text: bytes, *, offset: int = 0, last: bool = False) -> None:
        assert self.asked.wait(30)
        fetch = self.fetches[-1]
        chunk = pb.OutputChunk(
            lease_id=fetch.lease_id, request_id=fetch.request_id, offset=offset, data=text, last=last
        )
        self._world.loop.call_soon_threadsafe(self._world.output.on_chunk, self.link_id, chunk)

    def store(self, task: int, attempt: int, text: bytes) -> None:
        lease_id = self._world.read(lambda state: state.tasks[TaskId(task)].lease_id)
        chunk = pb.OutputChunk(lease_id=lease_id, task_id=task, attempt=attempt, data=text, last=True)
        self._world.loop.call_soon_threadsafe(self._world.output.on_chunk, self.link_id, chunk)


def open_stream(
    world: RestWorld, path: str, **headers: str
) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    connection = http.client.HTTPConnection("127.0.0.1", world.port, timeout=30)
    connection.request(
        "GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()}
    )
    return connection, connection.getresponse()


def wait_until(condition) -> None:
    done = threading.Event()
    for _ in range(3_000):
        if condition():
            return
        done.wait(0.01)
    raise AssertionError("it did not come to that")


def test_output_of_a_finished_task_is_kept_though_its_node_is_gone(world) -> None:
    world.add_node()
    world.submit()
    agent = AgentOutput(world)
    agent.store(1, 1, b"one\ntwo\nthree\n")
    world.finish_running()
    wait_until(lambda: world.run(world.output.stored(TaskId(1), 1)) is not None)
    assert world.ask("GET", "/api/v1/tasks/1/logs").body == "one\ntwo\nthree\n"
    assert world.ask("GET", "/api/v1/tasks/1/logs?tail=2").body == "two\nthree\n"
    assert world.ask("GET", "/api/v1/tasks/1/logs?tail=0").body == ""
    assert world.ask("GET", "/api/v1/tasks/1/logs?follow=true").body == "one\ntwo\nthree\n"
    reply = world.ask("GET", "/api/v1/tasks/1/logs?attempt=1")
    assert reply.headers["content-type"] == "text/plain; charset=utf-8"


def test_followed_output_comes_as_it_is_written_and_ends_with_the_task(world) -> None:
    world.add_node()
    world.submit()
    agent = AgentOutput(world)
    connection, response = open_stream(world, "/api/v1/tasks/1/logs?follow=true")
    agent.write(b"first ")
    assert response.read1() == b"first "
    agent.write(b"second", offset=6, last=True)
    assert response.read1() == b"second"
    world.finish_running()
    assert response.read() == b""
    connection.close()


def test_following_a_task_that_waits_begins_when_it_starts(world) -> None:
    world.submit()
    connection, response = open_stream(world, "/api/v1/tasks/1/logs?follow=true")
    assert response.status == 200
    world.add_node()
    agent = AgentOutput(world)
    agent.write(b"at last", last=True)
    assert response.read1() == b"at last"
    world.finish_running()
    assert response.read() == b""
    connection.close()


def test_a_reader_that_leaves_is_let_go(world) -> None:
    world.add_node()
    world.submit()
    agent = AgentOutput(world)
    connection, response = open_stream(world, "/api/v1/tasks/1/logs?follow=true")
    agent.write(b"x")
    assert response.read1() == b"x"
    response.close()
    connection.close()
    assert agent.cancelled.wait(30)


def silent_task(world) -> AgentOutput:
    """One that has ended, of which nothing was stored, with its node connected."""
    world.add_node()
    world.submit()
    world.finish_running()
    return AgentOutput(world)


def test_an_ended_task_wrote_nothing_if_its_node_says_so(world) -> None:
    agent = silent_task(world)
    answering = threading.Thread(target=lambda: agent.write(b"", last=True))
    answering.start()
    reply = world.ask("GET", "/api/v1/tasks/1/logs")
    answering.join()
    assert (reply.status, reply.body) == (200, "")


def test_nothing_found_is_told_as_nothing_written_only_where_that_is_known(world) -> None:
    """After a restart the scheduler cannot ask for an ended attempt any more: its node sends the output by itself."""
    silent_task(world)
    world.output._places = Recent(2)  # a restart forgets them

    def told(query: str = "") -> tuple[int, str]:
        reply = world.ask("GET", f"/api/v1/tasks/1/logs{query}")
        return reply.status, reply.body if reply.status == 200 else reply.body["detail"]

    status, detail = told()
    assert (status, "n1 may still have to send it" in detail) == (404, True)
    world.output._attached_s[NodeId("n1")] -= 60
    assert told() == told("?tail=3") == (200, "")
    world.output._intake.store_failed = True
    assert told()[0] == 404
    world.output._intake.store_failed = False
    world.output._store._forget(1, int(time.time() * 1000) + 1_000)
    for query in ("", "?tail=3"):
        status, detail = told(query)
        assert (status, "is no longer kept" in detail) == (404, True)


def test_output_that_cannot_be_had_is_a_problem(world) -> None:
    world.add_node()
    world.submit()
    world.finish_running()
    reply = world.ask("GET", "/api/v1/tasks/1/logs")
    assert (reply.status, reply.body["code"]) == (404, "output_unavailable")
    assert world.ask("GET", "/api/v1/tasks/9/logs").body["code"] == "unknown_task"
    assert world.ask("GET", "/api/v1/tasks/9/logs?follow=true").status == 404
    for query in ("tail=-1", "tail=x", "attempt=0", "follow=maybe", "folow=true"):
        assert world.ask("GET", f"/api/v1/tasks/1/logs?{query}").body["code"] == "invalid_query"


@pytest.mark.parametrize(
    ("text", "lines", "expected"),
    [
        (b"a\nb\nc\n", 1, b"c\n"),
        (b"a\nb\nc", 1, b"c"),
        (b"a\nb\nc", 2, b"b\nc"),
        (b"a\nb\n", 5, b"a\nb\n"),
        (b"", 3, b""),
        (b"\n\n\n", 2, b"\n\n"),
        (b"x", 0, b""),
    ],
)
def test_the_last_lines(text, lines, expected) -> None:
    assert tail_of(text, lines) == expected


def read_event(response: http.client.HTTPResponse) -> dict[str, str]:
    """Fields of the next event that has some."""
    event: dict[str, str] = {}
    while True:
        line = response.readline().decode().rstrip("\n")
        if not line and event:
            return event
        if line and not line.startswith(":"):
            name, _, value = line.partition(": ")
            event[name] = value


def test_events_are_streamed_and_resumed_by_their_id(world) -> None:
    connection, response = open_stream(world, "/api/v1/events")
    assert response.getheader("content-type", "").startswith("text/event-stream")
    assert "retry" in read_event(response)
    world.submit(env={"A": "s3cret"})
    event = read_event(response)
    assert event["event"] == "task_submitted"
    told = json.loads(event["data"])
    assert (told["first_task_id"], told["count"]) == ("task-1", 1)
    connection.close()
    world.submit()
    world.ask("DELETE", "/api/v1/tasks/1")
    connection, response = open_stream(world, "/api/v1/events", Last_Event_ID=event["id"])
    read_event(response)
    again = [read_event(response) for _ in range(2)]
    assert [each["event"] for each in again] == ["task_submitted", "task_cancelled"]
    connection.close()


def test_a_resume_from_the_beginning_or_from_nonsense(world) -> None:
    connection, response = open_stream(world, "/api/v1/events", Last_Event_ID="0")
    read_event(response)
    assert read_event(response)["event"] == "epoch_began"
    connection.close()
    assert world.ask("GET", "/api/v1/events", headers={"Last-Event-ID": "x"}).status == 400


def test_silence_is_filled_with_heartbeats(tmp_path) -> None:
    with RestWorld(tmp_path, options=RestOptions(version="t", heartbeat_seconds=0.05)) as world:
        connection, response = open_stream(world, "/api/v1/events")
        lines = [response.readline() for _ in range(6)]
        assert any(line.startswith(b":") for line in lines)
        connection.close()


def test_streams_have_a_bound_and_are_given_back(tmp_path) -> None:
    with RestWorld(tmp_path, options=RestOptions(version="t", max_streams=4)) as world:
        open_ones = [open_stream(world, "/api/v1/events") for _ in range(2)]
        refused = world.ask("GET", "/api/v1/events")
        assert (refused.status, refused.body["code"]) == (503, "too_many_streams")
        for connection, response in open_ones:
            response.close()
            connection.close()

        def one_more() -> bool:
            connection, response = open_stream(world, "/api/v1/events")
            status = response.status
            response.close()
            connection.close()
            return status == 200

        wait_until(one_more)


def test_a_stop_ends_the_streams(tmp_path) -> None:
    with RestWorld(tmp_path) as world:
        connection, response = open_stream(world, "/api/v1/events")
        read_event(response)
    with contextlib.suppress(http.client.IncompleteRead):
        assert response.read() is not None
    connection.close()


def test_what_is_missing_is_told_in_headers_as_json_and_in_the_text(world) -> None:
    world.add_node()
    world.submit()
    running = world.ask("GET", "/api/v1/tasks/1/output").body
    assert (running["attempt"], running["bytes"], running["node"]) == (1, None, "n1")
    agent = AgentOutput(world)
    lease_id = world.read(lambda state: state.tasks[TaskId(1)].lease_id)
    head = pb.OutputChunk(lease_id=lease_id, task_id=1, attempt=1, data=b"first\n")
    tail = pb.OutputChunk(
        lease_id=lease_id,
        task_id=1,
        attempt=1,
        offset=994,
        data=b"last\n\n",
        last=True,
        end=1_000,
        kept_ms=10**9,
    )
    for chunk in (head, tail):
        world.loop.call_soon_threadsafe(world.output.on_chunk, agent.link_id, chunk)
    world.finish_running()
    wait_until(lambda: world.run(world.output.stored(TaskId(1), 1)) is not None)
    place = world.ask("GET", "/api/v1/tasks/1/output").body
    assert (place["bytes"], place["node"], place["node_connected"]) == (1_000, "n1", True)
    assert place["stored"] == [{"begin": 0, "end": 6}, {"begin": 994, "end": 1_000}]
    assert place["missing"] == [{"begin": 6, "end": 994}]
    assert place["kept_until"]

    def answer() -> None:
        agent.write(b"x" * 987 + b"\n", offset=6, last=True)

    answering = threading.Thread(target=answer)
    answering.start()
    whole = world.ask("GET", "/api/v1/tasks/1/logs")
    answering.join()
    assert whole.raw == b"first\n" + b"x" * 987 + b"\nlast\n\n"
    assert whole.headers["x-dgpu-output-bytes"] == "1000"
    assert "x-dgpu-output-missing" not in whole.headers

    world.loop.call_soon_threadsafe(world.output.detach, agent.link_id)
    wait_until(lambda: not world.output.is_attached(NodeId("n1")))
    parts = world.ask("GET", "/api/v1/tasks/1/logs")
    assert parts.headers["x-dgpu-output-missing"] == "6-994"
    first, mark, *last = parts.body.splitlines()
    assert (first, last) == ("first", [""])
    assert mark.startswith("[dgpu: 993 bytes left out here; the whole output is on node n1 until ")
    assert world.ask("GET", "/api/v1/tasks/1/output?attempt=0").body["code"] == "invalid_query"
    assert world.ask("GET", "/api/v1/tasks/9/output").status == 404
