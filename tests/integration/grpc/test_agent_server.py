"""A real grpc.aio server and client on a free port; the agent is written here, message by message."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from dgpu.core.commands import CancelTasks
from dgpu.core.model.ids import NodeId, TaskId
from dgpu.core.model.settings import Settings
from dgpu.core.model.task import TaskStatus
from dgpu.journal.memory import MemoryJournal
from dgpu.service.grpc import links
from dgpu.service.grpc.server import SERVICE, AgentServer
from dgpu.service.loop.clock import Clock
from dgpu.service.loop.runtime import Runtime
from dgpu.service.machine.contact import AgentRules
from dgpu.service.machine.inputs import Begin
from dgpu.service.machine.scheduler import Scheduler
from dgpu.service.task_output import streams
from dgpu.service.task_output.reading import OutputUnavailable
from dgpu.service.task_output.store import LogStore
from dgpu.service.task_output.streams import OutputStreams
from dgpu.wire.proto import agent_pb2 as pb
from unit.service.cluster import heartbeat, register, reports, submit

pytestmark = pytest.mark.timeout(60)

CALL_AS_NOBODY = """
import os, sys, encodings.idna
import grpc
from dgpu.wire.proto import agent_pb2 as pb
os.setgid(65534); os.setuid(65534)
method, first = sys.argv[2], bytes.fromhex(sys.argv[3])
channel = grpc.insecure_channel(f"127.0.0.1:{sys.argv[1]}")
try:
    for answer in channel.stream_stream(method)(iter([first])):
        print("answered", answer.hex())
        break
except grpc.RpcError as error:
    print(error.code().name, error.details())
"""


class Service:
    def __init__(self, runtime: Runtime, output: OutputStreams, port: int) -> None:
        self.runtime = runtime
        self.output = output
        self.port = port
        self._channels: list[grpc.aio.Channel] = []

    def call(self, method: str = "Connect", **options: Any) -> Any:
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{self.port}", **options)
        self._channels.append(channel)
        answer = {"Connect": pb.FromScheduler, "Files": pb.FromSchedulerFiles}.get(
            method, pb.FromSchedulerOutput
        )
        return channel.stream_stream(
            f"/{SERVICE}/{method}",
            request_serializer=lambda message: (
                message if isinstance(message, bytes) else message.SerializeToString()
            ),
            response_deserializer=answer.FromString,
        )()

    async def submit(self, **values: Any) -> TaskId:
        (submitted, *_) = await self.runtime.execute(submit(**values))
        return submitted.first_id

    async def status(self, task_id: TaskId) -> TaskStatus:
        return await self.runtime.read(lambda state: state.tasks[task_id].status)

    async def close(self) -> None:
        for channel in self._channels:
            await channel.close()


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    journal = MemoryJournal()
    recovery = journal.recover()
    clock = Clock()
    scheduler = Scheduler(
        recovery.replayed(), last_index=recovery.index, rules=AgentRules(), started_at=clock.now_ms()
    )
    runtime = Runtime(scheduler, journal, clock)
    await runtime.start(Begin(settings=Settings()))
    output = OutputStreams(LogStore(tmp_path / "logs"), runtime)
    server = AgentServer(runtime, output)
    service = Service(runtime, output, await server.start("127.0.0.1", 0))
    yield service
    await service.close()
    await server.stop()
    await runtime.stop()
    await output.close()


async def connected(service: Service, **values: Any) -> Any:
    call = service.call()
    await call.write(register(**values))
    welcome = await call.read()
    assert welcome.welcome.epoch == 1
    return call


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - what is waited for has no event to wait on
        await asyncio.sleep(0.01)


async def ended(call: Any) -> tuple[grpc.StatusCode, str]:
    """The status of the call, after all sent messages."""
    try:
        while await call.read() is not grpc.aio.EOF:
            pass
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details() or ""
    return await call.code(), await call.details()


async def test_a_task_goes_from_submit_to_its_end_through_an_agent(service: Service) -> None:
    agent = await connected(service)
    task_id = await service.submit()
    (start,) = (await agent.read()).orders.starts
    assert start.task_id == task_id
    await agent.write(reports(1, started=(start.lease_id,), finished=(start.lease_id,)))
    assert (await agent.read()).reports_ack.seq == 1
    assert await service.status(task_id) is TaskStatus.SUCCESS


async def test_heartbeats_are_acknowledged(service: Service) -> None:
    agent = await connected(service)
    await agent.write(heartbeat(3, GPU_n1_0={"utilization_percent": 40}))
    assert (await agent.read()).heartbeat_ack.seq == 3
    assert service.runtime.telemetry["GPU-n1-0"].utilization_percent == 40
    assert service.runtime.node_contact(NodeId("n1")).connected


async def test_a_cancel_reaches_the_agent(service: Service) -> None:
    agent = await connected(service)
    task_id = await service.submit()
    (start,) = (await agent.read()).orders.starts
    await service.runtime.execute(CancelTasks(task_ids=(task_id,)))
    (stop,) = (await agent.read()).orders.stops
    assert stop.lease_id == start.lease_id


async def test_an_agent_that_leaves_is_noticed(service: Service) -> None:
    agent = await connected(service)
    agent.cancel()
    await until(lambda: not service.runtime.node_contact(NodeId("n1")).connected)
    assert service.runtime.node_contact(NodeId("n1")).heard_at > 0


async def test_bytes_that_are_no_message_end_the_stream_with_a_clean_status(service: Service) -> None:
    call = service.call()
    await call.write(b"\xff\xff\xff\xff")
    assert await ended(call) == (grpc.StatusCode.INVALID_ARGUMENT, "a message could not be decoded")


async def test_a_first_message_that_is_not_register_ends_the_stream(service: Service) -> None:
    call = service.call()
    await call.write(heartbeat())
    assert (await ended(call))[0] is grpc.StatusCode.INVALID_ARGUMENT


async def test_the_reason_of_a_refusal_arrives_before_the_stream_ends(service: Service) -> None:
    await connected(service)
    other = service.call()
    await other.write(register(boot="boot-2"))
    assert "another machine" in (await other.read()).refused.reason
    assert (await ended(other))[0] is grpc.StatusCode.UNAVAILABLE


async def test_a_message_beyond_the_limit_is_refused_and_the_server_goes_on(service: Service) -> None:
    call = service.call(options=[("grpc.max_send_message_length", 64 << 20)])
    await call.write(b"\x0a" + b"x" * (17 << 20))
    assert (await ended(call))[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
    await connected(service)


async def test_an_agent_that_does_not_read_is_cut(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "MAX_QUEUED_BYTES", 1 << 20)
    agent = await connected(service, gpus=64)
    # Orders far larger than what the stream's window holds, and nobody reads them.
    for _ in range(64):
        await service.submit(detail=b"x" * 500_000)
    await until(lambda: not service.runtime.node_contact(NodeId("n1")).connected)
    assert agent is not None


async def output_stream(service: Service, node: str = "n1") -> Any:
    call = service.call("Output")
    await call.write(pb.FromAgentOutput(hello=pb.OutputHello(node_id=node, session_id="s")))
    assert (await call.read()).credit.bytes == 1 << 20
    return call


def chunk(
    content: bytes,
    *,
    lease: int,
    task: int,
    offset: int = 0,
    request: int = 0,
    last: bool = False,
    error: str = "",
):
    return pb.FromAgentOutput(
        chunk=pb.OutputChunk(
            lease_id=lease,
            task_id=task,
            attempt=1,
            request_id=request,
            offset=offset,
            data=content,
            last=last,
            error=error,
        )
    )


async def running_task(service: Service) -> tuple[Any, TaskId, int]:
    agent = await connected(service)
    task_id = await service.submit()
    (start,) = (await agent.read()).orders.starts
    await agent.write(reports(1, started=(start.lease_id,)))
    await agent.read()
    return agent, task_id, start.lease_id


async def test_the_output_of_an_ended_attempt_is_stored_and_outlives_its_node(service: Service) -> None:
    agent, task_id, lease = await running_task(service)
    stream = await output_stream(service)
    await agent.write(reports(2, finished=(lease,)))
    await stream.write(chunk(b"hello ", lease=lease, task=task_id, offset=10))
    await stream.write(chunk(b"world\n", lease=lease, task=task_id, offset=16, last=True))
    assert (await stream.read()).stored.lease_id == lease
    stream.cancel()
    agent.cancel()
    missing = b"[dgpu: 10 bytes left out here; they are no longer stored anywhere]\n"
    assert await _all(service.output.read(task_id)) == missing + b"hello world\n"
    assert await _all(service.output.read(task_id, tail_bytes=6)) == b"world\n"


async def test_following_a_running_task_ends_with_it(service: Service) -> None:
    agent, task_id, lease = await running_task(service)
    stream = await output_stream(service)
    reading = asyncio.create_task(_all(service.output.read(task_id, follow=True)))
    fetch = (await stream.read()).fetch
    assert (fetch.lease_id, fetch.follow, fetch.offset) == (lease, True, 0)
    await stream.write(chunk(b"one\n", lease=lease, task=task_id, request=fetch.request_id))
    await stream.write(
        chunk(b"two\n", lease=lease, task=task_id, request=fetch.request_id, offset=4, last=True)
    )
    await agent.write(reports(2, finished=(lease,)))
    assert await reading == b"one\ntwo\n"


async def test_following_goes_on_from_the_store_when_the_stream_breaks_as_the_task_ends(
    service: Service,
) -> None:
    agent, task_id, lease = await running_task(service)
    stream = await output_stream(service)
    reading = asyncio.create_task(_all(service.output.read(task_id, follow=True)))
    fetch = (await stream.read()).fetch
    await stream.write(chunk(b"one\n", lease=lease, task=task_id, request=fetch.request_id))
    await stream.write(chunk(b"one\ntwo\n", lease=lease, task=task_id, last=True))
    assert (await stream.read()).stored.lease_id == lease
    stream.cancel()
    await agent.write(reports(2, finished=(lease,)))
    assert await reading == b"one\ntwo\n"


async def test_following_survives_a_new_output_stream(service: Service) -> None:
    _agent, task_id, lease = await running_task(service)
    first = await output_stream(service)
    pieces = service.output.read(task_id, follow=True)
    reading = asyncio.create_task(anext(pieces))
    fetch = (await first.read()).fetch
    await first.write(chunk(b"one\n", lease=lease, task=task_id, request=fetch.request_id))
    assert await reading == b"one\n"
    reading = asyncio.create_task(anext(pieces))
    await asyncio.sleep(0)
    first.cancel()
    second = await output_stream(service)
    fetch = (await second.read()).fetch
    assert fetch.offset == 4
    await second.write(chunk(b"two\n", lease=lease, task=task_id, request=fetch.request_id, offset=4))
    assert await reading == b"two\n"
    await pieces.aclose()
    assert (await second.read()).cancel_fetch.request_id == fetch.request_id


async def test_a_slow_reader_pauses_its_own_fetch_and_nobody_elses(service: Service) -> None:
    _agent, task_id, lease = await running_task(service)
    stream = await output_stream(service)
    pieces = service.output.read(task_id, follow=True)
    reading = asyncio.create_task(anext(pieces))
    fetch = (await stream.read()).fetch
    piece = b"x" * (64 << 10)
    await stream.write(chunk(piece, lease=lease, task=task_id, request=fetch.request_id))
    assert await reading == piece
    for number in range(1, 7):
        await stream.write(
            chunk(piece, lease=lease, task=task_id, request=fetch.request_id, offset=number * len(piece))
        )
    answers = [await stream.read() for _ in range(2)]
    assert sorted(answer.WhichOneof("body") for answer in answers) == ["cancel_fetch", "credit"]
    for _ in range(5):
        assert await anext(pieces) == piece
    reading = asyncio.create_task(anext(pieces))
    again = (await stream.read()).fetch
    assert again.offset == 6 * len(piece)  # the last one came when it was paused already
    assert again.request_id > fetch.request_id
    reading.cancel()


async def test_output_on_a_node_that_is_away_is_refused_with_the_reason(service: Service) -> None:
    agent, task_id, _lease = await running_task(service)
    agent.cancel()
    with pytest.raises(OutputUnavailable, match="node n1 is not connected"):
        await _all(service.output.read(task_id))


async def test_a_task_that_wrote_nothing_has_empty_output(service: Service) -> None:
    agent, task_id, lease = await running_task(service)
    stream = await output_stream(service)
    await agent.write(reports(2, finished=(lease,)))
    await agent.read()
    reading = asyncio.create_task(_all(service.output.read(task_id)))
    fetch = (await stream.read()).fetch
    await stream.write(
        chunk(b"", lease=lease, task=task_id, request=fetch.request_id, last=True, error="unknown lease")
    )
    assert await reading == b""


async def test_a_full_disk_keeps_the_agent_from_deleting(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, task_id, lease = await running_task(service)
    stream = await output_stream(service)
    store = service.output._store
    working = store.append

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store, "append", full)
    await stream.write(chunk(b"hello\n", lease=lease, task=task_id, last=True))
    await agent.write(heartbeat(9))
    assert (await agent.read()).heartbeat_ack.seq == 9  # the scheduler is well
    await until(lambda: not service.output._intake.is_storing)
    monkeypatch.setattr(store, "append", working)
    await stream.write(chunk(b"hello\n", lease=lease, task=task_id, last=True))
    assert (await stream.read()).stored.lease_id == lease


async def _all(pieces: AsyncIterator[bytes]) -> bytes:
    return b"".join([piece async for piece in pieces])


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
async def test_another_user_of_the_machine_cannot_pose_as_an_agent(service: Service) -> None:
    """He would be given commands and environments of others, and could end their tasks."""
    hello = pb.FromAgentOutput(hello=pb.OutputHello(node_id="n1", session_id="s"))
    for method, first in (("Connect", register()), ("Output", hello)):
        arguments = [str(service.port), f"/{SERVICE}/{method}", first.SerializeToString().hex()]
        nobody = await asyncio.create_subprocess_exec(
            sys.executable, "-c", CALL_AS_NOBODY, *arguments, stdout=subprocess.PIPE
        )
        said = (await nobody.communicate())[0].decode()
        assert said.startswith("PERMISSION_DENIED"), said
    assert await service.runtime.read(lambda state: list(state.nodes)) == []


async def hung_up(call: Any) -> tuple[grpc.StatusCode, str]:
    async with asyncio.timeout(30):
        return await ended(call)


async def test_an_output_stream_of_no_registered_session_is_refused(service: Service) -> None:
    _agent, task_id, lease = await running_task(service)
    for node, session in (("n1", "guessed"), ("n9", "s"), ("n9", ""), ("n1", "")):
        call = service.call("Output")
        await call.write(pb.FromAgentOutput(hello=pb.OutputHello(node_id=node, session_id=session)))
        await call.write(chunk(b"EVIL", lease=lease, task=task_id, last=True))
        code, reason = await hung_up(call)
        assert (code, "is registered here" in reason) == (grpc.StatusCode.UNAVAILABLE, True)
    assert service.output.refused == 4
    assert await service.output.stored(task_id, 1) is None


async def test_output_of_another_nodes_task_is_refused_also_after_its_end(service: Service) -> None:
    agent, task_id, lease = await running_task(service)
    await connected(service, node="n2")
    stream, evil = await output_stream(service), await output_stream(service, "n2")
    for _ in range(2):
        await evil.write(chunk(b"EVIL", lease=lease, task=task_id, last=True))
        assert (await evil.read()).unwanted.lease_id == lease
        await agent.write(reports(2, finished=(lease,)))
    await stream.write(chunk(b"REAL\n", lease=lease, task=task_id, last=True))
    assert (await stream.read()).stored.lease_id == lease
    await evil.write(chunk(b"EVIL", lease=lease, task=task_id, last=True))
    assert (await evil.read()).unwanted.lease_id == lease
    assert await _all(service.output.read(task_id)) == b"REAL\n"


async def test_an_output_stream_ends_with_the_session_of_its_node(service: Service) -> None:
    agent, task_id, lease = await running_task(service)
    stream = await output_stream(service)
    agent.cancel()
    await until(lambda: not service.runtime.session_of(NodeId("n1")))
    await stream.write(chunk(b"late", lease=lease, task=task_id, last=True))
    assert "the session of this stream has ended" in (await hung_up(stream))[1]


async def test_a_fetch_is_answered_by_the_node_that_was_asked_only(service: Service) -> None:
    _agent, task_id, lease = await running_task(service)
    await connected(service, node="n2")
    stream, evil = await output_stream(service), await output_stream(service, "n2")
    reading = asyncio.create_task(_all(service.output.read(task_id)))
    fetch = (await stream.read()).fetch
    await evil.write(chunk(b"EVIL", lease=lease, task=task_id, request=fetch.request_id, last=True))
    await until(lambda: service.output.refused == 1)
    await stream.write(chunk(b"REAL\n", lease=lease, task=task_id, request=fetch.request_id, last=True))
    assert await reading == b"REAL\n"


async def test_what_the_store_left_out_is_fetched_from_the_node_in_its_place(service: Service) -> None:
    agent, task_id, lease = await running_task(service)
    stream = await output_stream(service)
    text = b"".join(b"line %05d\n" % number for number in range(1_000))
    await agent.write(reports(2, finished=(lease,)))
    await stream.write(chunk(text[:2_200], lease=lease, task=task_id))
    last = chunk(text[8_795:], lease=lease, task=task_id, offset=8_795, last=True)
    last.chunk.end, last.chunk.kept_ms = len(text), 86_400_000
    await stream.write(last)
    assert (await stream.read()).stored.lease_id == lease
    reading = asyncio.create_task(_all(service.output.read(task_id)))
    fetch = (await stream.read()).fetch
    assert (fetch.offset, fetch.length, fetch.task_id, fetch.attempt) == (2_200, 6_595, task_id, 1)
    middle = chunk(
        text[2_200:8_795], lease=lease, task=task_id, request=fetch.request_id, offset=2_200, last=True
    )
    await stream.write(middle)
    assert await reading == text
    stream.cancel()
    await until(lambda: not service.output.is_attached(NodeId("n1")))
    lines = (await _all(service.output.read(task_id))).splitlines(keepends=True)
    (mark,) = (line for line in lines if line.startswith(b"[dgpu: 6,600 bytes left out here; "))
    assert b"the whole output is on node n1 until 20" in mark
    assert b"".join(line for line in lines if line != mark) == text[:2_200] + text[8_800:]


async def test_a_node_that_does_not_answer_is_named(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Truncated output without a note would look complete."""
    monkeypatch.setattr(streams, "ANSWER_S", 0.05)
    _agent, task_id, _lease = await running_task(service)
    await output_stream(service)
    with pytest.raises(OutputUnavailable, match="node n1 does not answer"):
        await _all(service.output.read(task_id))


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        (pb.FromAgentFiles(hello=pb.FilesHello(node_id="n1", session_id="other")), "no node is registered"),
        (pb.FromAgentFiles(hello=pb.FilesHello(node_id="n1")), "no node is registered"),
        (
            pb.FromAgentFiles(hello=pb.FilesHello(node_id="invented", session_id="s1")),
            "no node is registered",
        ),
        (pb.FromAgentFiles(answer=pb.FileAnswer()), "the first message must be FilesHello"),
    ],
)
async def test_a_stream_for_files_needs_the_session_of_a_registered_node(
    service: Service, first: pb.FromAgentFiles, reason: str
) -> None:
    """Otherwise an invented node answers in the place of a real one."""
    await connected(service)
    call = service.call("Files")
    await call.write(first)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call.read()
    assert reason in (refused.value.details() or "")
