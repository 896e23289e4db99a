"""A node without I/O and a worker on it, for tests of the machine."""

from __future__ import annotations

import msgspec

from dgpu.agent.epoch import Joined
from dgpu.agent.lifecycle import Lifecycle
from dgpu.agent.lifecycle_words import StopRuns, Woke
from dgpu.agent.node import NodeInput, NodeMachine, NodeOutput, StreamOpened
from dgpu.agent.run.runner import KnownRun, RunEnd, RunsEnded, RunsListed, RunsStarted
from dgpu.agent.session import Session
from dgpu.agent.session_words import (
    Flush,
    Identity,
    Received,
    Send,
    SessionSettings,
    Written,
)
from dgpu.agent.workers.machine import Workers
from dgpu.agent.workers.words import (
    TellWorker,
    WorkerSaid,
)
from dgpu.core.model.ids import GpuId, LeaseId, NodeId, TaskId
from dgpu.core.model.task import Outcome, TaskDetail, WorkerSetup
from dgpu.wire.proto import agent_pb2 as pb
from dgpu.worker import frames

GPU = GpuId("GPU-a")
WORKER = LeaseId(7)
GRACE_MS = 10_000
SETUP = WorkerSetup(app_id="app")


class Node:
    """A connected node. Collects what leaves it."""

    def __init__(self) -> None:
        self.now_ms = 1_000
        session = Session(
            identity=Identity(node_id=NodeId("n1"), boot_id="b1", cpus_milli=8_000, ram_mb=64_000),
            settings=SessionSettings(addresses=("m:1",)),
            joined=Joined(epoch=4),
            jitter=lambda: 1.0,
            new_session_id=lambda: "s1",
        )
        self.machine = NodeMachine(
            session=session, lifecycle=Lifecycle(grace_ms=GRACE_MS), workers=Workers(grace_ms=GRACE_MS)
        )
        self.outputs: list[NodeOutput] = []
        self.messages: list[pb.FromAgent] = []

    def feed(self, *values: NodeInput) -> Node:
        for value in (*values, Flush()):
            for output in self.machine.on_input(value, self.now_ms):
                if isinstance(output, Send):
                    self.messages.append(output.message)
                    self.feed(Written(address="m:1"))
                else:
                    self.outputs.append(output)
        return self

    def wait(self, passed_ms: int) -> Node:
        """The heartbeats of the worker do not come, those of the scheduler do."""
        while passed_ms > 0:
            step_ms = min(passed_ms, 500)
            passed_ms -= step_ms
            self.now_ms += step_ms
            self.feed(Woke())
            ack = pb.FromScheduler(heartbeat_ack=pb.HeartbeatAck(seq=0))
            self.feed(Received(address="m:1", message=ack))
        return self

    def connect(self, keep: tuple[int, ...] = ()) -> Node:
        self.feed(StreamOpened(address="m:1"), Written(address="m:1"))
        welcome = pb.Welcome(
            epoch=4, task_lease_ms=600_000, lease_action="freeze", heartbeat_timeout_ms=15_000, keep=keep
        )
        return self.feed(Received(address="m:1", message=pb.FromScheduler(welcome=welcome)))

    def order(self, **orders) -> Node:
        message = pb.FromScheduler(orders=pb.Orders(**orders))
        return self.feed(Received(address="m:1", message=message))

    def ack_all(self) -> Node:
        seq = max((message.reports.seq for message in self.messages), default=0)
        return self.feed(
            Received(address="m:1", message=pb.FromScheduler(reports_ack=pb.ReportsAck(seq=seq)))
        )

    def say(self, *said: frames.ToAgent, lease: int = WORKER) -> Node:
        return self.feed(WorkerSaid(lease_id=LeaseId(lease), frames=list(said)))

    def end_run(self, **facts) -> Node:
        end = {"lease_id": WORKER, "outcome": Outcome.EXITED, "at_ms": self.now_ms} | facts
        return self.feed(RunsEnded(ended=(RunEnd(**end),)))

    # -- what left it

    def take(self, kind: type) -> list:
        found = [output for output in self.outputs if isinstance(output, kind)]
        self.outputs = [output for output in self.outputs if not isinstance(output, kind)]
        return found

    def told(self) -> list[frames.ToWorker]:
        return [frame for output in self.take(TellWorker) for frame in output.frames]

    def returned(self) -> list[tuple[int, str, str]]:
        return [
            (each.lease_id, each.outcome, each.error)
            for message in self.messages
            for each in message.reports.returned
        ]

    def finished(self) -> list[tuple[int, str, str]]:
        return [
            (each.lease_id, each.outcome, each.error)
            for message in self.messages
            for each in message.reports.finished
        ]

    def stops(self) -> list[tuple[int, int]]:
        return [(order.lease_id, order.grace_ms) for output in self.take(StopRuns) for order in output.orders]


def start() -> pb.Start:
    detail = msgspec.json.encode(TaskDetail(command=("python3", "-m", "dgpu.worker"), worker=SETUP))
    return pb.Start(lease_id=WORKER, task_id=3, attempt=1, gpu_uuids=[GPU], detail=detail, nonce="x")


def call(lease_id: int = 20, **facts) -> pb.Call:
    given = {"task_id": lease_id + 100, "attempt": 1, "worker_lease_id": WORKER, "nonce": "x"} | facts
    return pb.Call(lease_id=lease_id, entrypoint="m:f", args=b"\x92\x90\x80", **given)


def done(lease_id: int = 20, outcome: str = "returned", **facts) -> frames.Done:
    return frames.Done(lease=lease_id, outcome=outcome, ran_ms=5, **facts)


def node_with_worker() -> Node:
    node = Node().feed(RunsListed(runs=())).connect()
    node.order(starts=[start()])
    node.feed(RunsStarted(started=((WORKER, node.now_ms),)))
    node.say(frames.Hello(protocol=1, pid=5), frames.Ready())
    node.ack_all()
    node.outputs.clear()
    node.messages.clear()
    return node


def known_worker(**facts) -> KnownRun:
    given = {"gpu_ids": (GPU,), "started_at_ms": 500, "worker_silence_ms": 30_000, "nonce": "x"} | facts
    return KnownRun(lease_id=WORKER, task_id=TaskId(3), attempt=1, **given)


def claims(*calls: frames.HeldCall) -> frames.Hello:
    return frames.Hello(protocol=1, pid=5, calls=calls)


def held_call(lease: int, state: str) -> frames.HeldCall:
    return frames.HeldCall(lease=lease, state=state, task_id=lease + 100, attempt=1, nonce="x")
