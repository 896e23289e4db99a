"""A node in the simulation: an agent that can die, a keeper that outlives it, a machine that can restart."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

from dgpu.agent.epoch import Joined
from dgpu.agent.lifecycle import Lifecycle
from dgpu.agent.lifecycle_words import (
    Acked,
    CheckRelease,
    DropOutput,
    ForgetRuns,
    GpusReleased,
    KeepOutput,
    LifecycleInput,
    LifecycleOutput,
    OutputStored,
    StartRuns,
    StopRuns,
    ThawRuns,
    Woke,
)
from dgpu.agent.node import NodeInput, NodeMachine, NodeOutput, StreamOpened
from dgpu.agent.pulse import MAX_UNANSWERED, TICK_SECONDS
from dgpu.agent.run.runner import RunnerFit, RunnerLost, RunnerWord
from dgpu.agent.session import NEVER_MS, Session
from dgpu.agent.session_words import (
    CardChecked,
    CheckCard,
    Dial,
    Disconnected,
    EpochSaved,
    Flush,
    GpusFound,
    HangUp,
    Heard,
    Identity,
    NodeGpu,
    Opened,
    Received,
    Sampled,
    SaveEpoch,
    Send,
    SessionSettings,
    TakeSamples,
    Written,
)
from dgpu.core.model.ids import GpuId, NodeId
from dgpu.sim.checkers import Checkers
from dgpu.sim.keeper import SimKeeper
from dgpu.sim.network import Connection, End, Network
from dgpu.sim.output_node import OutputNode
from dgpu.sim.output_scheduler import SimOutput
from dgpu.sim.world import World
from dgpu.wire.proto.agent_pb2 import FromScheduler


class AgentPort(End, Protocol):
    """A scheduler, as agents see it."""

    @property
    def is_up(self) -> bool:
        """It accepts connections."""
        ...

    def accept(self, connection: Connection) -> None: ...


class _WatchedLifecycle(Lifecycle):
    """Reports the ends that the node was told are durable."""

    def __init__(self, checkers: Checkers) -> None:
        super().__init__()
        self._checkers = checkers

    def on_input(self, value: LifecycleInput, now_ms: int) -> list[LifecycleOutput]:
        if isinstance(value, Acked):
            for lease_id in value.finished:
                if lease_id in self._leases:
                    self._checkers.on_end_acknowledged(self._leases[lease_id].order)
        return super().on_input(value, now_ms)


class NodeHost:
    def __init__(
        self,
        world: World,
        network: Network,
        schedulers: Mapping[str, AgentPort],
        output: SimOutput,
        checkers: Checkers,
        name: str,
        gpus: int,
        *,
        has_calls: bool = False,
    ) -> None:
        """`schedulers`: by address."""
        self._has_calls = has_calls
        self._world = world
        self._network = network
        self._schedulers = schedulers
        self._checkers = checkers
        self.name = name
        self._gpus = tuple(
            NodeGpu(id=GpuId(f"GPU-{name}-{index}"), index=index, model="V100", memory_mb=16_384)
            for index in range(gpus)
        )
        self._boots = 0
        self._booted_at = world.now
        self._rate = 1 + world.chance.uniform(-0.001, 0.001)  # clocks differ in speed
        self._joined_on_disk = Joined()
        self.keeper = SimKeeper(world, checkers, NodeId(name), self.clock, self.to_world)
        self.keeper.on_ended_by_guard = self.crash_keeper
        self.output = OutputNode(world, network, output, checkers, name, self.clock)
        self.keeper.write_output = self.output.write
        self._keeper_silent = False
        self._machine: NodeMachine | None = None
        self._connections: dict[str, Connection] = {}
        self._registered_at = next(iter(schedulers))  # the address of the last welcome
        self.on_obeyed: Callable[[Joined], None] = lambda _joined: None
        self._waking_at = 0
        self._keeper_arrives_at = 0
        self._last_heard: Heard | None = None  # for a new keeper
        self._paused: list[Callable[[], None]] | None = None

    def clock(self) -> int:
        """Milliseconds since boot, as this node counts them."""
        return int((self._world.now - self._booted_at) * self._rate) + 1_000

    def to_world(self, node_ms: int) -> int:
        return self._booted_at + int((node_ms - 1_000) / self._rate) + 1

    # Faults

    def start_agent(self) -> None:
        if self._machine is not None:
            return
        boot_id = f"{self.name}-{self._boots}"
        session = Session(
            identity=Identity(node_id=NodeId(self.name), boot_id=boot_id, cpus_milli=8_000, ram_mb=64_000),
            settings=SessionSettings(addresses=tuple(self._schedulers)),
            joined=self._joined_on_disk,
            jitter=self._world.chance.random,
            new_session_id=lambda: f"s{self._world.between(0, 1 << 30)}",
        )
        machine = self._machine = NodeMachine(session=session, lifecycle=_WatchedLifecycle(self._checkers))
        later = partial(self._later, machine=machine)
        self.output.begin(later, lambda lease_id: self._put(OutputStored(lease_ids=(lease_id,))))
        self.keeper.workers.begin(self._put, later)
        self._put(GpusFound(gpus=self._gpus))
        self._meet_keeper()

    def crash_agent(self) -> None:
        self.output.die()
        self.keeper.workers.agent_died()
        self._machine = None
        self._last_heard = None
        self._paused = None
        self._keeper_silent = False
        self.keeper.tell = None
        self._waking_at = 0
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            connection.close("agent")

    def leave_cluster(self) -> None:
        """An operator moves the node to another cluster. Its keeper still holds runs of the old one."""
        self.crash_agent()
        self._joined_on_disk = Joined()

    def crash_keeper(self) -> None:
        """The agent's orders are lost until it notices and has connected to the next keeper."""
        self.keeper.die()
        self.keeper.tell = None
        machine = self._machine

        def notice() -> None:
            self._put(RunnerLost())
            self._later(self._world.between(10, 500), self._meet_keeper, machine)

        self._later(self._keeper_delay_ms(), notice, machine)

    def hang_keeper(self, ms: int) -> None:
        """SIGSTOP of the keeper: its processes continue. The agent gets no answers to its pings."""
        if self.keeper.hangs:
            return
        self.keeper.hang(ms)
        machine = self._machine
        notices_after_ms = self._world.between(
            int(TICK_SECONDS * 1_000) * MAX_UNANSWERED, int(TICK_SECONDS * 1_000) * (MAX_UNANSWERED + 1)
        )

        def notice() -> None:
            if self.keeper.hangs and self.keeper.tell is not None:
                self._keeper_silent = True
                self._put(RunnerFit(unfit="its keeper does not answer"))

        def answer() -> None:
            if self._keeper_silent and not self.keeper.hangs:
                self._keeper_silent = False
                if self._last_heard is not None and self.keeper.tell is not None:
                    self._order(self._last_heard)
                self._put(RunnerFit(unfit=""))

        self._later(notices_after_ms, notice, machine)
        self._later(ms + self._world.between(1, 20), answer, machine)

    def reboot(self) -> None:
        self.crash_agent()
        self.keeper.forget_all()
        self._boots += 1
        self._booted_at = self._world.now

    def pause_agent(self, ms: int) -> None:
        """SIGSTOP of the agent only: the keeper continues."""
        if self._machine is None or self._paused is not None:
            return
        self._paused = []
        machine = self._machine

        def resume() -> None:
            if self._machine is machine and self._paused is not None:
                waiting, self._paused = self._paused, None
                for action in waiting:
                    action()

        self._world.after(ms, resume)

    # The network's side

    def on_message(self, connection: Connection, content: bytes) -> None:
        address = self._address_of(connection)
        if address is not None:
            self._put(Received(address=address, message=FromScheduler.FromString(content)))

    def on_broken(self, connection: Connection) -> None:
        address = self._address_of(connection)
        if address is not None:
            del self._connections[address]
            if address == self._registered_at:
                self._later(0, self.output.hang_up, self._machine)
            self._put(Disconnected(address=address, reason="broken"))

    def _address_of(self, connection: Connection) -> str | None:
        return next((key for key, known in self._connections.items() if known is connection), None)

    def link_to(self, address: str) -> str:
        """The name of the connection in the network."""
        return self.name if len(self._schedulers) == 1 else f"{self.name}-{address}"

    # Driving the machine

    def _put(self, value: NodeInput) -> None:
        if self._machine is None:
            return
        if self._paused is not None:
            self._paused.append(lambda: self._put(value))
            return
        for each in (value, Flush()) if self._has_calls else (value,):
            for output in self._machine.on_input(each, self.clock()):
                self._carry(output)
        self._wake_later()

    def _wake_later(self) -> None:
        if self._machine is None or self._machine.wake_at_ms >= NEVER_MS:
            return
        at = max(self._world.now + 1, self.to_world(self._machine.wake_at_ms))
        if self._waking_at == at:
            return
        self._waking_at = at
        machine = self._machine

        def wake() -> None:
            if machine is self._machine and self._waking_at == at:
                self._waking_at = 0
                self._put(Woke())

        self._world.at(at, wake)

    def _meet_keeper(self) -> None:
        """Waits for a keeper that hangs: until it answers, the running tasks are unknown."""
        machine = self._machine
        self.keeper.when_awake(lambda: self._greet_keeper(machine))

    def _greet_keeper(self, machine: NodeMachine | None) -> None:
        if machine is None or machine is not self._machine:
            return
        self.keeper.tell = self._on_keeper
        if self._last_heard is not None:
            self._order(self._last_heard)
        self._put(self.keeper.listed())
        if self._keeper_silent:
            self._keeper_silent = False
            self._put(RunnerFit(unfit=""))

    def _on_keeper(self, word: RunnerWord) -> None:
        self._later(self._keeper_delay_ms(), lambda: self._put(word), self._machine)

    def _keeper_delay_ms(self) -> int:
        """In order, like a socket."""
        self._keeper_arrives_at = max(self._keeper_arrives_at, self._world.now + self._world.between(0, 20))
        return self._keeper_arrives_at - self._world.now

    def _later(self, ms: int, action: Callable[[], None], machine: NodeMachine | None) -> None:
        """Done by the same agent process; a stopped agent does it when it wakes."""

        def act() -> None:
            if machine is None or machine is not self._machine:
                return
            if self._paused is not None:
                self._paused.append(action)
            else:
                action()

        self._world.after(ms, act)

    def _carry(self, output: NodeOutput) -> None:
        machine = self._machine
        match output:
            case Dial():
                self._dial(output.address)
            case Send():
                if output.address in self._connections:
                    self._connections[output.address].send_up(output.message)
                written = Written(address=output.address)
                self._later(self._world.between(0, 2), lambda: self._put(written), machine)
            case HangUp():
                self._hang_up(output.address)
            case Opened():
                self._registered_at = output.address
                if machine is not None:
                    self.on_obeyed(machine.session.joined)
                self.output.open(output.session_id)
            case SaveEpoch():
                self._later(self._world.between(0, 10), lambda: self._save(output.joined), machine)
            case TakeSamples():
                self._later(1, lambda: self._put(Sampled(samples=())), machine)
            case CheckCard():
                checked = CardChecked(gpu_id=output.gpu_id, number=output.number, ok=True, evidence="well")
                self._later(self._world.between(0, 1_000), lambda: self._put(checked), machine)
            case Heard() | StartRuns() | StopRuns() | ThawRuns() | ForgetRuns():
                if isinstance(output, Heard):
                    self._last_heard = output
                    if self._keeper_silent:
                        return
                if self.keeper.tell is not None:
                    self._order(output)
            case CheckRelease():
                released = GpusReleased(released=tuple((lease_id, ()) for lease_id, _ in output.leases))
                self._later(self._world.between(0, 100), lambda: self._put(released), machine)
            case KeepOutput():
                self.output.keep(output)
            case DropOutput():
                self.output.drop(output)
            case _:
                self.keeper.workers.carry(output)  # or a note

    def _order(self, output: Heard | StartRuns | StopRuns | ThawRuns | ForgetRuns) -> None:
        match output:
            case Heard():
                self.keeper.heard(output.at_ms, output.lease_ms, output.action)
            case StartRuns():
                self.keeper.start(output.orders)
            case StopRuns():
                self.keeper.stop(output.orders)
            case ThawRuns():
                self.keeper.thaw(output.lease_ids)
            case ForgetRuns():
                self.keeper.forget(output.lease_ids)

    def _save(self, joined: Joined) -> None:
        self._joined_on_disk = joined
        self._put(EpochSaved(joined=joined))

    def _hang_up(self, address: str) -> None:
        if address == self._registered_at:
            self.output.hang_up()
        connection = self._connections.pop(address, None)
        if connection is not None:
            connection.close("agent")
        hung_up = Disconnected(address=address, reason="hung up")
        self._later(0, lambda: self._put(hung_up), self._machine)

    def _dial(self, address: str) -> None:
        scheduler, link = self._schedulers[address], self.link_to(address)

        def answered() -> None:
            if not self._network.can_connect(link):
                return  # no answer; the session's timeout ends it
            if not scheduler.is_up:
                self._put(Disconnected(address=address, reason="refused"))
                return
            connection = self._connections[address] = self._network.connect(link, self, scheduler)
            scheduler.accept(connection)
            self._put(StreamOpened(address=address))

        self._later(self._network.delay_ms(), answered, self._machine)
