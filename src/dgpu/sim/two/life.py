"""One life of a scheduler among several: it follows, leads when it wins, and is discarded when it steps down."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from dgpu.core.commands import Command
from dgpu.core.model.ids import NodeId
from dgpu.core.model.settings import Settings
from dgpu.core.model.wall_span import newest_span
from dgpu.core.rejections import StorageFull, TooBusy
from dgpu.core.state import ClusterState
from dgpu.core.wall_clock import differs
from dgpu.journal.engine import Candidate
from dgpu.journal.format import record_at
from dgpu.journal.journal import Room
from dgpu.journal.segments import group_of
from dgpu.journal.snapshot import encode_snapshot
from dgpu.service.loop.clock import Clock
from dgpu.service.machine import inputs, outputs
from dgpu.service.machine.contact import AgentRules
from dgpu.sim.checkers import Violation
from dgpu.sim.engine import SimEngineClient
from dgpu.sim.history import SimHistory
from dgpu.sim.network import Connection
from dgpu.sim.scheduler_host import Answer, Look, MakeScheduler, SimMachine
from dgpu.sim.two.candidacy import SimCandidacy
from dgpu.sim.two.copy import LocalCopy
from dgpu.sim.two.truth import Truth
from dgpu.sim.world import World
from dgpu.wire.proto.agent_pb2 import FromAgent

_FULL_RETRY_MS = 1_000
MakeCandidacy = Callable[..., SimCandidacy]


class Place(Protocol):
    """The process in which a life runs."""

    name: str
    machine: SimMachine
    copy: LocalCopy
    dies_at_next_commit: bool

    def guarded(self, life: object, action: Callable[..., None]) -> Callable[..., None]: ...

    def end_life(self) -> None: ...

    def die_soon(self) -> None: ...


class Rules:
    """What all schedulers of a world share."""

    def __init__(
        self,
        agents: AgentRules,
        settings: Settings,
        make_scheduler: MakeScheduler,
        make_candidacy: MakeCandidacy,
        *,
        checks_clock: bool,
    ) -> None:
        self.agents = agents
        self.settings = settings
        self.make_scheduler = make_scheduler
        self.make_candidacy = make_candidacy
        self.checks_clock = checks_clock


class Life:
    def __init__(
        self, world: World, place: Place, engine: SimEngineClient, truth: Truth, rules: Rules, nonce: str
    ) -> None:
        self._world = world
        self._place = place
        self._truth = truth
        self._rules = rules
        self._nonce = nonce
        state = place.copy.state_at(place.copy.last_index)
        self._clock = Clock(state.last_at, state.wall, machine=place.machine)
        self.history = SimHistory()
        self.history.seen_at = state.last_at if place.copy.fetched else 0  # it continues from the snapshot
        for group in place.copy.groups():
            self.history.see(outputs.CommittedGroup(index=group.index, events=tuple(group.events)))
        self.scheduler = rules.make_scheduler(
            state,
            last_index=place.copy.last_index,
            rules=rules.agents,
            started_at=self._now(),
            full_pass_ms=5_000,
            is_gated=True,
        )
        candidate = Candidate(name=place.name, http="", grpc="", nonce=nonce)
        self.candidacy = rules.make_candidacy(
            world, engine, place.copy, candidate, place.machine.since_boot_ms, self
        )
        self.leads = False
        self._room = Room.OK
        self._deciding = False
        self._waking_at = 0
        self._next_id = 0
        self._answers: dict[int, Answer] = {}
        self._looks: dict[int, Look] = {}
        self._connections: dict[int, Connection] = {}

    def start(self) -> None:
        self.candidacy.start()

    def close(self) -> None:
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            connection.close("scheduler")

    @property
    def serves(self) -> bool:
        """Its epoch is durable."""
        return self.leads and self.scheduler.ready

    @property
    def state(self) -> ClusterState:
        return self.scheduler.state

    def session_of(self, node_id: NodeId) -> str:
        return self.scheduler.session_of(node_id)

    # Clients and agents

    def execute(self, command: Command, answer: Answer) -> None:
        self._next_id += 1
        self._answers[self._next_id] = answer
        self._put(inputs.Execute(request_id=self._next_id, command=command))

    def read(self, look: Look) -> None:
        self._next_id += 1
        self._looks[self._next_id] = look
        self._put(inputs.Read(request_id=self._next_id))

    def accept(self, connection: Connection) -> None:
        self._next_id += 1
        self._connections[self._next_id] = connection

    def on_message(self, connection: Connection, content: bytes) -> None:
        connection_id = self._id_of(connection)
        if connection_id is not None:
            self._put(inputs.AgentSaid(connection_id=connection_id, message=FromAgent.FromString(content)))

    def on_broken(self, connection: Connection) -> None:
        connection_id = self._id_of(connection)
        if connection_id is not None:
            del self._connections[connection_id]
            self._put(inputs.AgentLeft(connection_id=connection_id))

    def _id_of(self, connection: Connection) -> int | None:
        return next((key for key, known in self._connections.items() if known is connection), None)

    # The candidacy's side

    def guarded(self, action: Callable[..., None]) -> Callable[..., None]:
        return self._place.guarded(self, action)

    def on_group(self, encoded: bytes) -> bool:
        """Another scheduler committed it: first to the local files, then to the state. False: the disk is full."""
        record = record_at(memoryview(encoded), 0)
        if record is None or record.index != self._place.copy.last_index + 1:
            raise Violation(f"{self._place.name} read another group than it asked for")
        if not self._place.copy.write(encoded):
            return False
        followed = inputs.Followed(
            index=record.index, events=tuple(group_of(record, self._place.name).events)
        )
        self._carry(self.scheduler.on_input(followed, self._now()))
        self._clock.follow(self.state.last_at, self.state.wall, is_live=True)
        return True

    def on_won(self) -> None:
        self.leads = True
        begin = inputs.Begin(
            settings=self._rules.settings,
            nonce=self._nonce,
            cluster_id=str(self._world.seed),
            wall=self._clock.span,
        )
        self._put(begin)
        self._wake_later(self._now() + 1_000)
        self._trim_later()

    def _trim_later(self) -> None:
        """A snapshot of the local copy, at any group that it has, reaches the engine some time after it was taken."""

        def trim() -> None:
            copy = self._place.copy
            if copy.last_index < copy.first_index:  # nothing came after the snapshot that was fetched
                self._trim_later()
                return
            index = self._world.between(max(copy.first_index, copy.last_index - 20), copy.last_index)
            snapshot = self.snapshot_at(index)
            sent = self.guarded(lambda: self.candidacy.store_snapshot(index, snapshot))
            self._world.after(self._world.chance.choice((0, 100, 8_000)), sent)
            self._trim_later()

        self._world.after(self._world.between(2_000, 60_000), self.guarded(trim))

    def snapshot_at(self, index: int) -> bytes:
        state = self._place.copy.state_at(index)
        return encode_snapshot(state, index=index, epoch=state.epoch)

    def on_stepped_down(self) -> None:
        self._place.end_life()

    # Driving the machine

    def _now(self) -> int:
        return self._clock.now_ms()

    def _put(self, value: inputs.Input) -> None:
        self._carry(self.scheduler.on_input(value, self._now()))
        if not self.scheduler.in_flight and not self._deciding:
            self._deciding = True
            self._world.after(0, self.guarded(self._decide))

    def _decide(self) -> None:
        self._deciding = False
        if not self.leads or self.scheduler.in_flight:
            return
        room = inputs.RoomChanged(room=self._present_room(), sure_bytes=1 << 30)
        self._carry(self.scheduler.on_input(room, self._now()))
        self._carry(self.scheduler.on_input(inputs.DecideQueued(), self._now()))
        self._wake_later(self.scheduler.wake_at())

    def _present_room(self) -> Room:
        return Room.NONE if self._place.copy.room is Room.NONE else self._room

    def _wake_later(self, at: int) -> None:
        """`at`: in the time of the journal."""
        at = self._world.now + max(0, at - self._now())
        if self._waking_at and self._waking_at <= at:
            return
        self._waking_at = at

        def wake() -> None:
            if self._waking_at == at:
                self._waking_at = 0
                self._wake_later(self._now() + 1_000)
                self._clock.look()
                if differs(newest_span(self.state.wall), self._clock.span):
                    self._put(inputs.WallClockSet(span=self._clock.span))
                self._put(inputs.TimePassed())

        self._world.at(at, self.guarded(wake))

    def _carry(self, steps: list[outputs.Output]) -> None:
        for output in steps:
            match output:
                case outputs.Append():
                    self._append(output)
                case outputs.Confirm():
                    self._confirm(output.ticket)
                case outputs.Reply():
                    if not isinstance(
                        output.result, StorageFull | TooBusy
                    ):  # true whoever leads: nothing was stored
                        self._check_may_act()
                    self._answers.pop(output.request_id)(output.result)
                case outputs.ReplyFailed():
                    raise Violation(f"a command raised an error: {output.error}")
                case outputs.Tell():
                    self._tell(output)
                case outputs.HangUp():
                    connection = self._connections.pop(output.connection_id, None)
                    if connection is not None:
                        connection.close("scheduler")
                case outputs.Contradicted():
                    raise Violation(
                        f"seed {self._world.seed}: {self._place.name} is contradicted: {output.reason}"
                    )
                case outputs.ReadNow():
                    look = self._looks.pop(output.request_id)
                    if not output.is_stale:
                        look(self.state)
                case outputs.Publish():
                    self.history.see(output.group)
                    # Several groups may share a millisecond: only everything before it is certainly stored.
                    advanced = inputs.HistoryAdvanced(at=self.history.seen_at - 1)
                    self._world.after(0, self.guarded(lambda advanced=advanced: self._put(advanced)))
                case outputs.LoadCommitted():
                    self._load(output.index)
                case _:
                    pass  # remarks

    def _tell(self, output: outputs.Tell) -> None:
        message = output.message
        if message.WhichOneof("body") != "heartbeat_ack" or message.heartbeat_ack.seq:
            self._check_may_act()  # a message without a number renews nothing
        connection = self._connections.get(output.connection_id)
        if connection is not None:
            connection.send_down(message)

    def _check_may_act(self) -> None:
        term = self.candidacy.machine.term
        if self._rules.checks_clock and term is not None:
            self._truth.check_may_act(term, self._world.now)

    def _confirm(self, ticket: int) -> None:
        def confirmed() -> None:
            if self._is_held(confirmed):
                return
            self._carry(self.scheduler.on_input(inputs.Confirmed(ticket=ticket), self._now()))

        self.candidacy.confirm(confirmed)

    def _append(self, group: outputs.Append) -> None:
        def committed() -> None:
            if self._is_held(committed):
                return
            self._room = Room.OK
            self._carry(self.scheduler.on_input(inputs.Committed(index=group.index), self._now()))
            self._decide()

        self.candidacy.commit(group, committed, lambda: self._on_full(group))
        if self._place.dies_at_next_commit:
            self._place.dies_at_next_commit = False
            self._place.die_soon()

    def _on_full(self, group: outputs.Append) -> None:
        self._room = Room.NONE
        state = self._place.copy.state_at(group.index - 1)
        not_stored = inputs.NotStored(index=group.index, state=state, refusal=StorageFull())
        self._carry(self.scheduler.on_input(not_stored, self._now()))
        self._world.after(_FULL_RETRY_MS, self.guarded(self._try_room))

    def _try_room(self) -> None:
        if self._truth.is_full:
            self._world.after(_FULL_RETRY_MS, self.guarded(self._try_room))
        else:
            self._room = Room.OK
            self._decide()

    def _is_held(self, action: Callable[[], None]) -> bool:
        if self.candidacy.may_act():
            return False
        self.candidacy.when_allowed(action)
        return True

    def _load(self, index: int) -> None:
        def loaded() -> None:
            is_same = self._place.copy.last_index == index
            state = self._place.copy.state_at(index)
            self._put(inputs.Loaded(index=index if is_same else -1, state=state))

        self._world.after(self._world.between(1, 50), self.guarded(loaded))
