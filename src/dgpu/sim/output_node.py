"""Output on a node of the simulation: its files and the courier of its agent. Replaces OutputHost, on virtual time.

Files outlive the agent. A stream opens with the session of the main stream and is reopened when it breaks.
"""

from __future__ import annotations

from collections.abc import Callable

from dgpu.agent.lifecycle_words import DropOutput, KeepOutput
from dgpu.agent.output_courier import NEVER_MS, OutputCourier
from dgpu.agent.output_words import (
    CallEnded,
    CallOpened,
    CourierInput,
    FilesRead,
    MessageTaken,
    OutputSettled,
    ReadFiles,
    SchedulerSaid,
    SendMessage,
    TimeCame,
)
from dgpu.agent.run.runner import RunOrder
from dgpu.core.model.ids import LeaseId, NodeId, TaskId
from dgpu.sim.checkers import Checkers
from dgpu.sim.network import Connection, Network
from dgpu.sim.output_scheduler import SimOutput
from dgpu.sim.world import World
from dgpu.wire.proto import agent_pb2 as pb

_REOPEN_MS = 2_000
_SIZES = (0, 1, 90, 400, 900, 2_500)  # around the limits of the scheduler, see output_scheduler

Attempt = tuple[LeaseId, TaskId, int]


class OutputNode:
    """`later` acts as the agent: not before it wakes, and never after its end."""

    def __init__(
        self,
        world: World,
        network: Network,
        scheduler: SimOutput,
        checkers: Checkers,
        name: str,
        clock: Callable[[], int],
    ) -> None:
        self._world = world
        self._network = network
        self._scheduler = scheduler
        self._checkers = checkers
        self._name = name
        self._clock = clock
        self.files: dict[Attempt, bytes] = {}
        self._courier = OutputCourier(node_id=NodeId(name), kept_ms=3_600_000)
        self._later: Callable[[int, Callable[[], None]], None] = lambda _ms, _action: None
        self._on_settled: Callable[[LeaseId], None] = lambda _lease_id: None
        self._session_id = ""
        self._connection: Connection | None = None
        self._waking_at = 0
        self._unsettled: set[LeaseId] = set()

    @property
    def is_at_rest(self) -> bool:
        """Whether the output of all ended attempts is stored or was refused."""
        return not self._unsettled

    def write(self, order: RunOrder) -> int:
        """Writes the output of an attempt; returns the number of bytes."""
        key = (order.lease_id, order.task_id, order.attempt)
        size = self._world.chance.choice(_SIZES)
        self.files[key] = (f"{order.lease_id}.{order.task_id}.{order.attempt};".encode() * size)[:size]
        self._checkers.outputs.on_written(NodeId(self._name), key, self.files[key])
        return size

    # The agent's life

    def begin(
        self,
        later: Callable[[int, Callable[[], None]], None],
        on_settled: Callable[[LeaseId], None],
    ) -> None:
        self._courier = OutputCourier(node_id=NodeId(self._name), kept_ms=3_600_000)
        self._later, self._on_settled = later, on_settled
        self._waking_at = 0
        self._unsettled.clear()

    def die(self) -> None:
        self.hang_up()
        self._later = lambda _ms, _action: None
        self._unsettled.clear()

    def keep(self, output: KeepOutput) -> None:
        self._unsettled.add(output.lease_id)
        self._put(output)

    def drop(self, output: DropOutput) -> None:
        self._unsettled.discard(output.lease_id)
        self._put(output)

    def open(self, session_id: str) -> None:
        self._session_id = session_id
        self._call()

    def hang_up(self) -> None:
        self._session_id = ""
        if self._connection is not None:
            self._connection.close("agent")
            self._connection = None
            self._put(CallEnded())

    # The network's side

    def on_message(self, connection: Connection, content: bytes) -> None:
        message = pb.FromSchedulerOutput.FromString(content)

        def take() -> None:
            if connection is self._connection:
                self._put(SchedulerSaid(message=message))

        self._later(0, take)

    def on_broken(self, connection: Connection) -> None:
        def notice() -> None:
            if connection is self._connection:
                self._connection = None
                self._put(CallEnded())
                self._later(_REOPEN_MS, self._call)

        self._later(0, notice)

    def _call(self) -> None:
        if not self._session_id or self._connection is not None:
            return
        if not self._network.can_connect(self._name) or not self._scheduler.is_up:
            self._later(_REOPEN_MS, self._call)
            return
        self._connection = self._network.connect(self._name, self, self._scheduler)
        self._put(CallOpened(session_id=self._session_id))

    # Driving the machine

    def _put(self, value: CourierInput) -> None:
        for output in self._courier.on_input(value, self._clock()):
            if isinstance(output, SendMessage):
                self._send(output.message)
            elif isinstance(output, ReadFiles):
                self._read(output)
            elif isinstance(output, OutputSettled):
                self._settle(output)
        self._wake_later()

    def _send(self, message: pb.FromAgentOutput) -> None:
        if self._connection is not None:
            self._connection.send_up(message)
            self._later(self._world.between(0, 2), lambda: self._put(MessageTaken()))

    def _read(self, ask: ReadFiles) -> None:
        text = self.files.get((ask.lease_id, ask.task_id, ask.attempt))
        whole = text or b""
        offset = max(0, len(whole) - ask.tail_bytes) if ask.tail_bytes else ask.offset
        read = FilesRead(
            ticket=ask.ticket,
            is_there=text is not None,
            is_running=False,
            end=len(whole),
            offset=offset,
            data=whole[offset : offset + min(ask.max_bytes, 64)],
        )
        self._later(self._world.between(0, 3), lambda: self._put(read))

    def _settle(self, settled: OutputSettled) -> None:
        self._unsettled.discard(settled.lease_id)
        key = (settled.lease_id, settled.task_id, settled.attempt)
        self._checkers.outputs.on_settled(key, settled)
        if settled.is_whole:
            self.files.pop(key, None)
        self._on_settled(settled.lease_id)

    def _wake_later(self) -> None:
        wake_at_ms = self._courier.wake_at_ms(self._clock())
        if wake_at_ms >= NEVER_MS or self._waking_at:
            return
        self._waking_at = wake_at_ms

        def wake() -> None:
            self._waking_at = 0
            self._put(TimeCame())

        self._later(max(1, wake_at_ms - self._clock()), wake)
