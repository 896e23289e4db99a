"""Large arguments and results of calls: no file stays behind, and a lost result is no fault of the function."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from dgpu.agent.run.runner import RunsFrozen, RunsListed, RunsStarted
from dgpu.agent.session_words import Received
from dgpu.agent.workers import files
from dgpu.agent.workers.host import WorkerHost
from dgpu.agent.workers.link import WorkerLink
from dgpu.agent.workers.machine import HELLO_MS
from dgpu.agent.workers.output import MAX_WAITING_BYTES, CallOutputs
from dgpu.agent.workers.words import (
    ArgumentsStored,
    ConnectWorker,
    DeleteArguments,
    ResultStored,
    WorkerHungUp,
    WorkerSaid,
    WorkerUnread,
    WriteCallOutput,
)
from dgpu.core.model.ids import LeaseId, NodeId
from dgpu.wire.proto import agent_pb2 as pb
from dgpu.worker import frames
from worker_node import WORKER, Node, call, done, node_with_worker, start

LEASE = LeaseId(20)
STORED = ArgumentsStored(lease_id=LEASE, worker_lease_id=WORKER, name="args-20")
UNREAD = [DeleteArguments(worker_lease_id=WORKER, name="args-20")]


def node_with_large_call() -> Node:
    node = node_with_worker()
    node.order(calls=[call(args_ref="a" * 64)])
    return node


def test_arguments_of_a_call_that_was_taken_back_are_deleted() -> None:
    """A warm worker may live for days, and each such file may have 1 GiB."""
    node = node_with_large_call().feed(STORED)
    node.order(stops=[pb.Stop(lease_id=20, reason="taken_back")])
    node.say(frames.Done(lease=20, outcome="cancelled", error="taken back before it began"))
    node.ack_all()
    assert node.take(DeleteArguments) == UNREAD


def test_arguments_that_arrive_after_their_call_was_cancelled_are_deleted() -> None:
    node = node_with_large_call()
    node.order(stops=[pb.Stop(lease_id=20, reason="cancelled")])
    assert node.returned() == [(20, "cancelled", "stopped before it was started")]
    node.feed(STORED)
    assert node.take(DeleteArguments) == UNREAD


def test_arguments_that_the_function_got_are_deleted_by_its_worker() -> None:
    node = node_with_large_call().feed(STORED).say(done()).ack_all()
    assert node.returned() == [(20, "returned", "")]
    assert node.take(DeleteArguments) == []


@pytest.mark.parametrize(("is_lost", "outcome"), [(True, "worker_lost"), (False, "cannot_encode")])
def test_a_result_that_is_lost_with_its_worker_may_be_made_again(is_lost: bool, outcome: str) -> None:
    node = node_with_worker()
    node.order(calls=[call()]).say(done(result_file="r", sha256="b" * 64, size=9))
    node.feed(ResultStored(lease_id=LEASE, error="its worker has ended", is_lost=is_lost))
    assert node.returned() == [(20, outcome, "result: its worker has ended")]


def test_the_directory_of_a_worker_that_has_ended_is_told_apart_from_a_bad_file(tmp_path: Path) -> None:
    with pytest.raises(files.WorkerGone, match="its worker has ended"):
        files.open_result(str(tmp_path / "gone"), "r", os.geteuid(), 3)
    with pytest.raises(files.FileRefused, match="No such file") as refused:
        files.open_result(str(tmp_path), "r", os.geteuid(), 3)
    assert not isinstance(refused.value, files.WorkerGone)


def test_a_worker_that_is_not_read_because_the_disk_is_slow_is_not_silent() -> None:
    """A disk that stands still for a while must not end workers and make their GPUs faulty."""
    node = node_with_worker()
    node.feed(WorkerUnread(lease_id=WORKER, is_unread=True)).wait(100_000)
    assert node.stops() == []
    node.feed(WorkerUnread(lease_id=WORKER, is_unread=False)).wait(29_500)
    assert node.stops() == []
    node.wait(1_000)
    assert node.stops() == [(WORKER, 0)]


def test_a_worker_that_is_frozen_before_its_hello_has_the_rest_of_its_time_afterwards() -> None:
    node = Node().feed(RunsListed(runs=())).connect()
    node.order(starts=[start()]).feed(RunsStarted(started=((WORKER, node.now_ms),)))
    node.feed(RunsFrozen(lease_ids=(WORKER,))).wait(HELLO_MS + 10_000)
    seq = max(message.heartbeat.seq for message in node.messages)
    ack = pb.FromScheduler(heartbeat_ack=pb.HeartbeatAck(seq=seq))
    node.feed(Received(address="m:1", message=ack))
    node.wait(HELLO_MS - 1_000)
    assert node.stops() == []
    node.wait(2_000)
    assert node.stops() == [(WORKER, 0)]


async def test_the_host_tells_when_it_stops_to_read_a_worker_and_reads_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_write, told = threading.Event(), []
    write = CallOutputs._carry_out
    monkeypatch.setattr(CallOutputs, "_carry_out", lambda *given: (may_write.wait(), write(*given))[1])
    server = await asyncio.start_unix_server(lambda *_: None, tmp_path / "s")
    runner = SimpleNamespace(worker_address=lambda _: (str(tmp_path / "s"), os.geteuid()))
    host = WorkerHost(
        NodeId("n1"), output_dir=tmp_path, output_cap_bytes=1 << 30, uploads=None, feed=told.append
    )
    host.attach(runner)
    host.carry_out(ConnectWorker(lease_id=WORKER))
    await host._links[WORKER]._connecting
    large = WriteCallOutput(lease_id=LEASE, worker_lease_id=WORKER, stream=1, data=b"x" * MAX_WAITING_BYTES)
    host.carry_out(large)
    await asyncio.sleep(0)
    assert told == [WorkerUnread(lease_id=WORKER, is_unread=True)]
    may_write.set()
    async with asyncio.timeout(30):
        while len(told) < 2:  # noqa: ASYNC110 - a thread writes
            await asyncio.sleep(0.01)
    assert told[1:] == [WorkerUnread(lease_id=WORKER, is_unread=False)]
    await host.close()
    server.close()


async def test_a_socket_of_another_user_is_not_heard(tmp_path: Path) -> None:
    told: list[WorkerSaid | WorkerHungUp] = []
    hello = frames.encode(frames.Hello(protocol=1, pid=5))
    server = await asyncio.start_unix_server(lambda _, writer: writer.write(hello), tmp_path / "s")
    link = WorkerLink(WORKER, str(tmp_path / "s"), os.geteuid() + 1, told.append)
    async with asyncio.timeout(30):
        while not told:  # noqa: ASYNC110 - a connection
            await asyncio.sleep(0.01)
    (ended,) = told
    assert isinstance(ended, WorkerHungUp)
    assert ended.broken == f"its socket belongs to user {os.geteuid()}, not to user {os.geteuid() + 1}"
    link.close()
    server.close()
