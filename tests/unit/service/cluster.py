"""What the tests of the service's machines share: a scheduler with a clock of its own, and short words for messages."""

from __future__ import annotations

from typing import Any

from dgpu.core.commands import Command, SubmitTasks
from dgpu.core.events import Event
from dgpu.core.model.ids import TenantId
from dgpu.core.model.settings import Settings
from dgpu.core.model.task import Pool, Restart, Shape, TaskSpec
from dgpu.core.rejections import Rejection
from dgpu.core.state import ClusterState
from dgpu.service.machine.contact import AgentRules
from dgpu.service.machine.inputs import (
    AgentLeft,
    AgentSaid,
    Begin,
    Committed,
    DecideQueued,
    Execute,
    Input,
    TimePassed,
)
from dgpu.service.machine.outputs import Append, HangUp, Output, Remark, Reply, Tell
from dgpu.service.machine.scheduler import Scheduler
from dgpu.wire.proto import agent_pb2 as pb

START = 1_700_000_000_000


def spec(
    *,
    gpus: int = 1,
    detail: bytes = b"{}",
    allocation: bool = False,
    restart: Restart = Restart.NEVER,
    tenant_id: str = "default",
) -> TaskSpec:
    shape = Shape(tenant_id=TenantId(tenant_id), pool=Pool.BATCH, priority=50, gpus=gpus)
    return TaskSpec(shape=shape, detail=detail, allocation=allocation, restart=restart)


def submit(count: int = 1, **values: Any) -> SubmitTasks:
    return SubmitTasks(entries=((count, spec(**values)),))


def register(
    node: str = "n1",
    *,
    gpus: int = 2,
    boot: str = "boot-1",
    held: tuple[int | pb.HeldLease, ...] = (),
    epoch: int = 0,
    **identity: Any,
):
    """`held`: leases of tasks with the same number, or as they are."""
    return pb.FromAgent(
        register=pb.Register(
            node_id=node,
            boot_id=boot,
            session_id="s",
            highest_epoch=epoch,
            cpus_milli=8_000,
            ram_mb=64_000,
            gpus=[
                pb.Gpu(uuid=f"GPU-{node}-{i}", index=i, model="V100", memory_mb=16_384) for i in range(gpus)
            ],
            leases=[
                pb.HeldLease(lease_id=lease, task_id=lease, state=pb.HeldLease.RUNNING)
                if isinstance(lease, int)
                else lease
                for lease in held
            ],
            **identity,
        )
    )


def heartbeat(seq: int = 1, **samples: dict[str, Any]) -> pb.FromAgent:
    return pb.FromAgent(
        heartbeat=pb.Heartbeat(
            seq=seq,
            samples=[pb.GpuSample(uuid=uuid.replace("_", "-"), **values) for uuid, values in samples.items()],
        )
    )


def reports(seq: int = 1, *, started: tuple[int, ...] = (), finished: tuple[int, ...] = ()) -> pb.FromAgent:
    return pb.FromAgent(
        reports=pb.Reports(
            seq=seq,
            started=[pb.Started(lease_id=lease) for lease in started],
            finished=[pb.Finished(lease_id=lease, outcome="exited") for lease in finished],
        )
    )


class Bench:
    """Drives a scheduler; commits groups when told, or by itself with `settle`."""

    def __init__(
        self, state: ClusterState | None = None, *, last_index: int = 0, begins: bool = True, **rules: Any
    ) -> None:
        self.now = START
        self.state = state or ClusterState()
        self.scheduler = Scheduler(
            self.state, last_index=last_index, rules=AgentRules(**rules), started_at=self.now
        )
        self.appended: list[Append] = []
        self._request_id = 0
        if begins:
            self.begin()

    def begin(self, **known: Any) -> None:
        self.put(Begin(settings=Settings(), **known))
        self.settle()

    def put(self, value: Input) -> list[Output]:
        return self.scheduler.on_input(value, self.now)

    def decide(self) -> list[Output]:
        outputs = self.put(DecideQueued())
        self.appended += [output for output in outputs if isinstance(output, Append)]
        return outputs

    def commit(self) -> list[Output]:
        """Make the group in flight durable; the next one is not decided yet."""
        return self.put(Committed(index=self.appended[-1].index))

    def settle(self) -> list[Output]:
        """Decide and commit until nothing is left to do."""
        outputs: list[Output] = []
        while True:
            outputs += self.decide()
            if not self.scheduler.in_flight:
                return outputs
            outputs += self.commit()

    def ask(self, command: Command) -> int:
        self._request_id += 1
        self.put(Execute(request_id=self._request_id, command=command))
        return self._request_id

    def run(self, command: Command) -> tuple[Event, ...] | Rejection:
        request_id = self.ask(command)
        (reply,) = [o for o in self.settle() if isinstance(o, Reply) and o.request_id == request_id]
        return reply.result

    def say(self, connection: int, message: pb.FromAgent) -> list[Output]:
        return without_remarks(self.put(AgentSaid(connection_id=connection, message=message)) + self.settle())

    def leave(self, connection: int) -> None:
        self.put(AgentLeft(connection_id=connection))

    def wait(self, ms: int, *, beating: dict[int, int] | None = None) -> list[Output]:
        """Let time pass, a second at a time."""
        outputs: list[Output] = []
        until = self.now + ms
        while self.now < until:
            self.now = min(until, self.now + 1_000)
            for connection in beating or ():
                outputs += self.say(connection, heartbeat())
            outputs += self.put(TimePassed()) + self.settle()
        return without_remarks(outputs)


def without_remarks(outputs: list[Output]) -> list[Output]:
    return [
        output
        for output in outputs
        if not isinstance(output, Remark | Append) and type(output).__name__ != "Publish"
    ]


def told(outputs: list[Output], connection: int | None = None) -> list[pb.FromScheduler]:
    return [o.message for o in outputs if isinstance(o, Tell) and connection in {None, o.connection_id}]


def hung_up(outputs: list[Output]) -> list[tuple[int, str]]:
    return [(o.connection_id, o.reason) for o in outputs if isinstance(o, HangUp)]


def starts(outputs: list[Output]) -> list[int]:
    return [start.lease_id for message in told(outputs) for start in message.orders.starts]


def stops(outputs: list[Output]) -> list[int]:
    return [stop.lease_id for message in told(outputs) for stop in message.orders.stops]
