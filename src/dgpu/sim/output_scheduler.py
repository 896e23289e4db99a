"""The scheduler's end of output streams in the simulation: the intake, a store that may be full, and history."""

from __future__ import annotations

from collections.abc import Callable

from dgpu.core.events import GangPlaced, TaskPlaced
from dgpu.core.model.ids import LeaseId, NodeId, TaskId
from dgpu.service.machine.outputs import CommittedGroup
from dgpu.service.task_output.coverage import Coverage
from dgpu.service.task_output.intake import OutputIntake
from dgpu.service.task_output.intake_words import (
    ChunkArrived,
    EndLink,
    FindHolder,
    Holder,
    HolderFound,
    IntakeInput,
    LinkEnded,
    LinkOpened,
    PartsStored,
    RunDurable,
    StoreParts,
    TellAgent,
)
from dgpu.service.task_output.pack import OutputPart
from dgpu.sim.network import Connection
from dgpu.sim.world import World
from dgpu.wire.proto import agent_pb2 as pb
from dgpu.wire.ranks import run_number

_LIMITS = (100, 500)  # head and tail bytes
_LARGER_LIMITS = (600, 2_000)  # all output of the simulation is stored wholly

MakeIntake = Callable[..., OutputIntake]


class SimOutput:
    """The intake is lost with the scheduler. The store and the history stay."""

    def __init__(self, world: World, make_intake: MakeIntake = OutputIntake) -> None:
        self._world = world
        self._make = make_intake
        self._intake: OutputIntake | None = None
        self._connections: dict[int, Connection] = {}
        self._greeted: set[int] = set()
        self._last_id = 0
        self._starts = 0
        self._past: dict[LeaseId, Holder] = {}
        self.stored: list[OutputPart] = []
        self.postpone: Callable[[Callable[[], None]], bool] = lambda _action: False
        self.full_until = 0

    @property
    def is_up(self) -> bool:
        return self._intake is not None

    @property
    def refused(self) -> int:
        return self._intake.refused if self._intake is not None else 0

    def start(self, session_of: Callable[[NodeId], str]) -> None:
        head_bytes, tail_bytes = self._next_limits()
        self._intake = self._make(session_of=session_of, head_bytes=head_bytes, tail_bytes=tail_bytes)

    def _next_limits(self) -> tuple[int, int]:
        """In every third world an operator changes them with each restart. The other worlds stay as they were."""
        self._starts += 1
        is_larger = self._world.seed % 3 == 0 and self._starts % 2 == 0
        return _LARGER_LIMITS if is_larger else _LIMITS

    def crash(self) -> None:
        self._intake = None
        connections, self._connections = self._connections, {}
        self._greeted.clear()
        for connection in connections.values():
            connection.close("scheduler")

    def forget_holders(self) -> None:
        """History was lost."""
        self._past.clear()

    def on_group(self, group: CommittedGroup) -> None:
        for event in group.events:
            for rank, placed in enumerate(event.ranks if isinstance(event, GangPlaced) else (event,)):
                if isinstance(placed, TaskPlaced):
                    number = run_number(placed.attempt, rank)
                    self._past[placed.lease_id] = Holder(
                        node_id=placed.node_id, task_id=placed.task_id, attempt=number
                    )
        self._put(group)

    def forge(self, node_id: NodeId, session_id: str) -> None:
        """A stream from a node, or from an attacker with an invented session, with output of other attempts."""
        others = [lease_id for lease_id, holder in self._past.items() if holder.node_id != node_id]
        if not others:
            return
        lease_id = self._world.chance.choice(others)
        holder = self._past[lease_id]
        self._last_id += 1
        link_id = self._last_id
        chunk = pb.OutputChunk(
            lease_id=lease_id,
            task_id=holder.task_id,
            attempt=holder.attempt,
            data=b"EVIL",
            last=True,
            end=4,
        )
        self._put(LinkOpened(link_id=link_id, node_id=node_id, session_id=session_id))
        self._put(ChunkArrived(link_id=link_id, chunk=chunk))
        self._put(LinkEnded(link_id=link_id))

    # The network's side

    def on_message(self, connection: Connection, content: bytes) -> None:
        if self.postpone(lambda: self.on_message(connection, content)):
            return
        message = pb.FromAgentOutput.FromString(content)
        link_id = next((key for key, known in self._connections.items() if known is connection), 0)
        if not link_id:
            link_id = self._accept(connection)
        if message.HasField("hello"):
            if link_id in self._greeted:
                self._end(link_id)
                self._put(LinkEnded(link_id=link_id))
                return
            self._greeted.add(link_id)
            node_id, session_id = NodeId(message.hello.node_id), message.hello.session_id
            self._put(LinkOpened(link_id=link_id, node_id=node_id, session_id=session_id))
        else:
            self._put(ChunkArrived(link_id=link_id, chunk=message.chunk))

    def on_broken(self, connection: Connection) -> None:
        for link_id, known in tuple(self._connections.items()):
            if known is connection:
                del self._connections[link_id]
                self._put(LinkEnded(link_id=link_id))

    def _accept(self, connection: Connection) -> int:
        self._last_id += 1
        self._connections[self._last_id] = connection
        return self._last_id

    def _end(self, link_id: int) -> None:
        connection = self._connections.pop(link_id, None)
        if connection is not None:
            connection.close("scheduler")

    # Driving the machine

    def _put(self, value: IntakeInput) -> None:
        intake = self._intake
        if intake is None or self.postpone(lambda: self._put(value)):
            return
        for output in intake.on_input(value, self._world.now):
            if isinstance(output, TellAgent):
                if output.link_id in self._connections:
                    self._connections[output.link_id].send_down(output.message)
            elif isinstance(output, RunDurable):
                stored = pb.FromSchedulerOutput(stored=pb.Stored(lease_id=output.lease_id))
                if output.link_id in self._connections:
                    self._connections[output.link_id].send_down(stored)
            elif isinstance(output, EndLink):
                self._end(output.link_id)
            elif isinstance(output, FindHolder):
                self._answer(
                    intake, HolderFound(lease_id=output.lease_id, holder=self._past.get(output.lease_id))
                )
            elif isinstance(output, StoreParts):
                self._store(intake, output.parts)

    def _store(self, intake: OutputIntake, parts: tuple[OutputPart, ...]) -> None:
        """Synced some time later. A crash before that may leave any part of it."""
        ok = self._world.now >= self.full_until

        def sync() -> None:
            if self._intake is intake:
                if ok:
                    self._keep(parts)
                self._put(PartsStored(ok=ok))
            elif ok:
                self._keep(parts[: self._world.between(0, len(parts))])

        self._world.after(self._world.between(0, 20), sync)

    def _keep(self, parts: tuple[OutputPart, ...]) -> None:
        """As the real store does, without what is stored already."""
        for part in parts:
            known = [each for each in self.stored if _run(each) == _run(part)]
            ranges = [(each.offset, each.offset + len(each.content)) for each in known]
            end = next((each.end for each in known if each.is_last), None)
            self.stored += Coverage(ranges, end).take(part)

    def _answer(self, intake: OutputIntake, value: IntakeInput) -> None:
        def answer() -> None:
            if self._intake is intake:
                self._put(value)

        self._world.after(self._world.between(0, 50), answer)


def _run(part: OutputPart) -> tuple[LeaseId, TaskId, int]:
    return part.lease_id, part.task_id, part.attempt
