"""The scheduler's process in the simulation: replaces the asyncio adapter, on virtual time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dgpu.core.commands import Command
from dgpu.core.model.ids import NodeId, TaskId
from dgpu.core.model.settings import Settings
from dgpu.core.model.wall_span import newest_span
from dgpu.core.rejections import StorageFull
from dgpu.core.state import ClusterState
from dgpu.core.wall_clock import differs
from dgpu.service.loop.clock import MAX_GAP_MS, Clock
from dgpu.service.machine.contact import AgentRules
from dgpu.service.machine.inputs import (
    AgentLeft,
    AgentSaid,
    Begin,
    Committed,
    DecideQueued,
    Execute,
    HistoryAdvanced,
    Input,
    NotStored,
    Read,
    RoomChanged,
    TimePassed,
    WallClockSet,
)
from dgpu.service.machine.outputs import (
    Append,
    CommittedGroup,
    HangUp,
    Output,
    Publish,
    ReadNow,
    Reply,
    ReplyFailed,
    Tell,
)
from dgpu.service.machine.scheduler import Scheduler
from dgpu.service.task_output.intake import OutputIntake
from dgpu.sim.checkers import Checkers, Violation
from dgpu.sim.disk import SimDisk
from dgpu.sim.history import SimHistory
from dgpu.sim.network import Connection
from dgpu.sim.output_scheduler import MakeIntake, SimOutput
from dgpu.sim.world import World
from dgpu.wire.proto.agent_pb2 import FromAgent

WALL_MS = 1_700_000_000_000
_HOUR_MS = 3_600_000
JUMPS_MS = tuple(sign * hours * _HOUR_MS for hours in (1, 40 * 24, 10 * 365 * 24) for sign in (-1, 1))

Answer = Callable[[object], None]
Look = Callable[[ClusterState], None]
MakeScheduler = Callable[..., Scheduler]


class SimMachine:
    """The scheduler's machine: its wall clock is set sometimes, and it restarts."""

    def __init__(self, world: World, name: str = "", up_ms: int = 86_400_000) -> None:
        self._world = world
        self._name = name
        self._boots = 0
        self._booted_at = -up_ms
        self.boot_id = f"{name}boot-0"
        self.wall_off_ms = 0

    def since_boot_ms(self) -> int:
        return self._world.now - self._booted_at

    def wall_ms(self) -> int:
        return WALL_MS + self._world.now + self.wall_off_ms

    def reboot(self) -> None:
        self._boots += 1
        self.boot_id = f"{self._name}boot-{self._boots}"
        self._booted_at = self._world.now


class SchedulerHost:
    def __init__(
        self,
        world: World,
        checkers: Checkers,
        rules: AgentRules,
        settings: Settings,
        make_scheduler: MakeScheduler = Scheduler,
        make_intake: MakeIntake = OutputIntake,
    ) -> None:
        self._world = world
        self._checkers = checkers
        self._rules = rules
        self._settings = settings
        self._make = make_scheduler
        self.disk = SimDisk(world)
        self.history = SimHistory()
        self.output = SimOutput(world, make_intake)
        self.output.postpone = self._is_postponed
        self.scheduler: Scheduler | None = None
        self.starts = 0
        self.dies_at_next_write = False
        self.read_in_flight: Callable[[], None] = lambda: (
            None
        )  # clients that read while a group is being written
        self.machine = SimMachine(world)
        self._clock = Clock(machine=self.machine)
        self._clock_offset = 0
        self._history_at = 0
        self._last_at = self._last_now = 0  # of the previous scheduler
        self._deciding = False
        self._waking_at = 0
        self._next_id = 0
        self._paused: list[Callable[[], None]] | None = None
        self._known: dict[str, Any] = {}
        self._answers: dict[int, Answer] = {}
        self._looks: dict[int, Look] = {}
        self._connections: dict[int, Connection] = {}

    @property
    def is_up(self) -> bool:
        return self.scheduler is not None

    @property
    def state(self) -> ClusterState:
        if self.scheduler is None:
            raise AssertionError("the scheduler is down")
        return self.scheduler.state

    def session_of(self, node_id: NodeId) -> str:
        return self.scheduler.session_of(node_id) if self.scheduler is not None else ""

    def lose_state(self) -> None:
        """A new state directory: another cluster, whose numbers start again."""
        self.crash()
        self.disk = SimDisk(self._world)
        self.output.stored.clear()
        self._forget_lost(ClusterState())
        self.start()

    def lose_tail(self, groups: int) -> None:
        """The journal loses its end, and an operator accepts that: the next epoch is above all known ones."""
        self.crash()
        before, _ = self.disk.recover()
        self.disk.lose_tail(groups)
        self._forget_lost(self.disk.recover()[0])
        self.start(above_epoch=before.epoch, above_task=TaskId(before.next_task_id - 1), lost_tail=True)

    def _forget_lost(self, state: ClusterState) -> None:
        self.history, self._history_at = SimHistory(), 0
        self.output.forget_holders()
        for group in self.disk.groups_after(0):
            self.history.see(group)
            self.output.on_group(group)
        self._checkers.on_lost(state, self.history)

    def start(self, **known: Any) -> None:
        """`known`: the numbers for the new epoch of a start after a loss."""
        if self.scheduler is not None:
            return
        # The operator accepts the loss again if the start died before its epoch was durable.
        self._known = known = known or self._known
        self.starts += 1
        state, index = self.disk.recover()
        self._checkers.check_recovered(state, self.history)
        self._clock = self._started_clock(state)
        self._clock_offset = self._clock.now_ms() - self._world.now
        self.scheduler = self._make(
            state, last_index=index, rules=self._rules, started_at=self._now(), full_pass_ms=5_000
        )
        self._waking_at = 0
        self.output.start(self.session_of)
        for group in self.disk.groups_after(self.history.seen_index):  # some may never have been published
            self._follow(group)
        name = f"{self._world.seed}-{self.starts}"
        begin = Begin(settings=self._settings, nonce=name, cluster_id=name, wall=self._clock.span, **known)
        self._put(begin)
        self._wake_later(self._world.now + 1_000)

    def _started_clock(self, state: ClusterState) -> Clock:
        """Checks that exactly the elapsed time is counted, whatever the wall clock, unless the machine was off."""
        clock = Clock(state.last_at, state.wall, machine=self.machine)
        known = newest_span(state.wall)
        now, gone_ms = clock.now_ms(), self._world.now - self._last_now
        is_exact = known is not None and known.boot_id == self.machine.boot_id
        first, last = (state.last_at, state.last_at + MAX_GAP_MS)
        if is_exact:
            first = last = self._last_at + gone_ms
        # An empty journal knows no earlier time.
        if self._last_at and state.last_at and not first <= now <= last:
            raise Violation(f"the time jumped from {self._last_at} to {now}, {gone_ms} ms have passed")
        return clock

    def crash(self) -> None:
        """Like kill -9: memory is lost, the disk stays, the kernel closes the sockets."""
        if self.scheduler is None:
            return
        self._last_at, self._last_now = self._now(), self._world.now
        self.scheduler = None
        self._paused = None
        self._deciding = False
        self.disk.crash()
        self.output.crash()
        self._answers.clear()
        self._looks.clear()
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            connection.close("scheduler")

    def execute(self, command: Command, answer: Answer) -> None:
        if self.scheduler is not None:
            self._next_id += 1
            self._answers[self._next_id] = answer
            self._put(Execute(request_id=self._next_id, command=command))

    def read(self, look: Look) -> None:
        """At a committed point, as `Runtime.read` does."""
        if self.scheduler is not None:
            self._next_id += 1
            self._looks[self._next_id] = look
            self._put(Read(request_id=self._next_id))

    def pause(self, ms: int) -> None:
        """SIGSTOP: sockets fill up, time passes."""
        if self.scheduler is None or self._paused is not None:
            return
        self._paused = []
        scheduler = self.scheduler

        def resume() -> None:
            if self.scheduler is scheduler and self._paused is not None:
                waiting, self._paused = self._paused, None
                for action in waiting:
                    action()

        self._world.after(ms, resume)

    # The network's side

    def accept(self, connection: Connection) -> None:
        self._next_id += 1
        self._connections[self._next_id] = connection

    def on_message(self, connection: Connection, content: bytes) -> None:
        connection_id = self._id_of(connection)
        if connection_id is not None:
            self._put(AgentSaid(connection_id=connection_id, message=FromAgent.FromString(content)))

    def on_broken(self, connection: Connection) -> None:
        connection_id = self._id_of(connection)
        if connection_id is not None:
            del self._connections[connection_id]
            self._put(AgentLeft(connection_id=connection_id))

    def _id_of(self, connection: Connection) -> int | None:
        return next((key for key, known in self._connections.items() if known is connection), None)

    # Driving the machine

    def _now(self) -> int:
        return self._world.now + self._clock_offset

    def _put(self, value: Input) -> None:
        scheduler = self.scheduler
        if scheduler is None or self._is_postponed(lambda: self._put(value)):
            return
        self._carry(scheduler.on_input(value, self._now()))
        if not scheduler.in_flight and not self._deciding:
            self._deciding = True
            self._world.after(0, lambda: self._decide(scheduler))

    def _decide(self, scheduler: Scheduler) -> None:
        if scheduler is not self.scheduler or self._is_postponed(lambda: self._decide(scheduler)):
            return
        self._deciding = False
        if not scheduler.in_flight:
            room = RoomChanged(room=self.disk.room, sure_bytes=1 << 30)
            self._carry(scheduler.on_input(room, self._now()))
            self._carry(scheduler.on_input(DecideQueued(), self._now()))
            self._wake_later(scheduler.wake_at() - self._clock_offset)

    def _wake_later(self, at: int) -> None:
        if self._waking_at and self._waking_at <= at:
            return
        self._waking_at = at
        scheduler = self.scheduler

        def wake() -> None:
            if scheduler is self.scheduler and scheduler is not None and self._waking_at == at:
                self._waking_at = 0
                self._wake_later(self._world.now + 1_000)
                self._clock.look()
                if differs(newest_span(scheduler.state.wall), self._clock.span):
                    self._put(WallClockSet(span=self._clock.span))
                self._put(TimePassed())

        self._world.at(at, wake)

    def _carry(self, outputs: list[Output]) -> None:
        for output in outputs:
            if isinstance(output, Append):
                self._append(output)
            elif isinstance(output, Reply):
                self._answers.pop(output.request_id)(output.result)
            elif isinstance(output, ReplyFailed):
                raise Violation(f"a command raised an error: {output.error}")
            elif isinstance(output, Tell):
                connection = self._connections.get(output.connection_id)
                if connection is not None:
                    connection.send_down(output.message)
            elif isinstance(output, HangUp):
                connection = self._connections.pop(output.connection_id, None)
                if connection is not None:
                    connection.close("scheduler")
            elif isinstance(output, ReadNow):
                self._looks.pop(output.request_id)(self.state)
            elif isinstance(output, Publish):
                self._known = {}
                self._checkers.on_committed(self.state, output.group.events, self.history)
                self._follow(output.group)

    def _append(self, group: Append) -> None:
        scheduler = self.scheduler
        self.disk.append(
            group,
            on_durable=lambda: self._on_durable(scheduler, group.index),
            on_not_stored=lambda state: self._on_not_stored(scheduler, group.index, state),
            on_failed=self._end_and_start,
        )
        if self.dies_at_next_write:
            self.dies_at_next_write = False
            self._world.after(0, self.read_in_flight)
            self._world.after(0, self.crash)
            self._world.after(500, self.start)

    def _on_durable(self, scheduler: Scheduler | None, index: int) -> None:
        if scheduler is None or scheduler is not self.scheduler:
            return
        if not self._is_postponed(lambda: self._on_durable(scheduler, index)):
            self._carry(scheduler.on_input(Committed(index=index), self._now()))
            self._decide(scheduler)

    def _on_not_stored(self, scheduler: Scheduler | None, index: int, state: ClusterState) -> None:
        if scheduler is None or scheduler is not self.scheduler:
            return
        if not self._is_postponed(lambda: self._on_not_stored(scheduler, index, state)):
            not_stored = NotStored(index=index, state=state, refusal=StorageFull())
            self._carry(scheduler.on_input(not_stored, self._now()))
            self._checkers.check_undone(scheduler.state, self.disk.replayed())

    def _end_and_start(self) -> None:
        """A failed sync ends the process. In half of the cases the machine loses power some time later."""
        self.crash()
        self._world.after(500, self.start)
        if self._world.chance.random() < 0.5:
            self._world.after(self._world.between(0, 20_000), self.lose_power)

    def lose_power(self) -> None:
        self.crash()
        self.disk.cut_power()
        self._world.after(2_000, self.start)

    def _is_postponed(self, action: Callable[[], None]) -> bool:
        """A message to a stopped process waits until it continues, and is dropped if it died meanwhile."""
        if self._paused is None:
            return False
        self._paused.append(action)
        return True

    def _follow(self, group: CommittedGroup) -> None:
        """The follower's part: it writes the history some time after the commit, and reports its progress."""
        history = self.history
        self.output.on_group(group)

        def write() -> None:
            if history is not self.history:
                return  # it was lost with the state
            history.see(group)
            # Several groups may share a millisecond: only everything before it is certainly stored.
            self._put(HistoryAdvanced(at=history.seen_at - 1))

        self._world.after(self._history_lag_ms(), write)

    def _history_lag_ms(self) -> int:
        """In order: a later group is never written before an earlier one."""
        self._history_at = max(
            self._history_at, self._world.now + self._world.chance.choice((0, 0, 5, 3_000))
        )
        return self._history_at - self._world.now
