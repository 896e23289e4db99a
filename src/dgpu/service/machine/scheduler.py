"""The scheduler as a machine without I/O: inputs and a time in, outputs to be carried out in order.

It joins the commit pipeline (commit.py) and the sessions of the agents (agents.py), and keeps the beat: work that is
due every second, every few seconds, and when a back-off ends. The service and the simulator drive this same machine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dgpu.core.commands import (
    BeginEpoch,
    LoseNode,
    ObserveCondition,
    ObserveGpu,
    ReadWallClock,
    RegisterNode,
    ReleaseNode,
    Tick,
)
from dgpu.core.decide.time import forget_due
from dgpu.core.model.ids import GpuId, NodeId
from dgpu.core.rejections import Rejection, StorageFull, TooBusy
from dgpu.core.state import ClusterState, next_tick_at, next_wake_at
from dgpu.journal.journal import Room
from dgpu.service.machine.agent_words import GpuSample
from dgpu.service.machine.agents import Agents, Ask, Effect, Origin, Registering, Reported
from dgpu.service.machine.agents import Result as AgentResult
from dgpu.service.machine.commit import CommitPipeline, Failed, Group, Result, Watch
from dgpu.service.machine.contact import AgentRules, NodeContact
from dgpu.service.machine.gate import Gate
from dgpu.service.machine.inputs import (
    AgentLeft,
    AgentSaid,
    Begin,
    Committed,
    Confirmed,
    DecideQueued,
    Execute,
    Followed,
    HistoryAdvanced,
    Input,
    Loaded,
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
    Remark,
    Reply,
    ReplyFailed,
)
from dgpu.service.machine.progress import ProgressBook
from dgpu.service.machine.reads import PATIENCE_MS, WaitingReads
from dgpu.service.secrets.opened import Opener

_COMES_AGAIN = (RegisterNode, ObserveGpu, ObserveCondition, LoseNode, ReleaseNode)

TICK_MS = 1_000
FULL_PASS_MS = 5_000
_LONG_STALL_MS = 3_000  # agents may notice it


class Scheduler:
    """`on_input` is the only entry point. After Committed, the caller carries out outputs and sends DecideQueued.

    `opener` opens the sealed values of a task for its start order. None: orders have the detail as it is. `is_gated`:
    other schedulers may take over, so outputs without a commit wait for a confirmation (gate.py). Until Begin, the
    machine follows: it applies groups of others and decides nothing.
    """

    def __init__(
        self,
        state: ClusterState,
        *,
        last_index: int,
        rules: AgentRules,
        started_at: int,
        full_pass_ms: int = FULL_PASS_MS,
        opener: Opener | None = None,
        is_gated: bool = False,
    ) -> None:
        self.state = state
        self.ready = False  # its epoch is durable
        self._commit = CommitPipeline(state, last_index)
        self._gate = Gate(is_gated=is_gated)
        self._reads = WaitingReads(self._commit, self._gate)
        self._appended_at = 0
        self._is_stalled = False  # since the last TimePassed
        self._was_stalled = False
        self._agents = Agents(state, rules, started_at, opener)
        self._rules = rules
        self._full_pass_ms = full_pass_ms
        self._ticked_at = started_at
        self._full_pass_at = started_at
        self._history_at = 0
        self._on: dict[type[Input], Callable[[Any, int], list[Output]]] = {
            Execute: self._on_execute,
            DecideQueued: self._on_decide,
            Committed: self._on_committed,
            NotStored: self._on_not_stored,
            Read: self._on_read,
            AgentSaid: self._on_agent_said,
            AgentLeft: self._on_agent_left,
            TimePassed: self._on_time,
            RoomChanged: self._on_room,
            HistoryAdvanced: self._on_history,
            Begin: self._on_begin,
            WallClockSet: self._on_wall_clock,
            Confirmed: self._on_confirmed,
            Loaded: self._on_loaded,
            Followed: self._on_followed,
        }

    @property
    def in_flight(self) -> bool:
        return self._commit.in_flight is not None

    @property
    def committed_index(self) -> int:
        return self._commit.last_index

    @property
    def room(self) -> Room:
        return self._commit.room

    @property
    def trouble(self) -> str:
        return self._commit.trouble

    @property
    def awaits_calm(self) -> bool:
        return self._commit.awaits_calm

    @property
    def queued(self) -> int:
        return self._commit.queued

    @property
    def progress(self) -> ProgressBook:
        return self._agents.progress

    @property
    def telemetry(self) -> dict[GpuId, GpuSample]:
        return self._agents.telemetry

    def stalled_ms(self, now: int) -> int:
        """How long the engine has not answered: neither to the group in flight nor to the oldest confirmation."""
        if not self._gate.is_gated:
            return 0
        in_flight_ms = now - self._appended_at if self.in_flight else 0
        return max(in_flight_ms, self._gate.waits_ms(now))

    @property
    def requests_in_flight(self) -> set[int]:
        group = self._commit.in_flight
        return {origin for origin, _ in group.results if isinstance(origin, int)} if group else set()

    def watch_with(self, watch: Watch) -> None:
        self._commit.watch = watch

    def contact(self, node_id: NodeId) -> NodeContact:
        return self._agents.contact(node_id)

    def session_of(self, node_id: NodeId) -> str:
        return self._agents.session_of(node_id)

    def wake_at(self) -> int:
        """The latest time for the next TimePassed."""
        beat = self._ticked_at + TICK_MS
        if not self.ready or self._commit.room is Room.NONE or self._is_stalled:
            return beat  # due work could not be decided
        wake_at = max(next_wake_at(self.state) or beat, self.state.no_pass_before)
        return min(beat, wake_at, next_tick_at(self.state) or beat)

    def on_input(self, value: Input, now: int) -> list[Output]:
        return self._on[type(value)](value, now)

    # Commands and reads

    def _on_begin(self, value: Begin, now: int) -> list[Output]:
        self._agents.begin(now)
        self._ticked_at = self._full_pass_at = now
        command = BeginEpoch(
            settings=value.settings,
            nonce=value.nonce,
            cluster_id=value.cluster_id,
            above_epoch=value.above_epoch,
            above_task=value.above_task,
            lost_tail=value.lost_tail,
            # A node may run a task under a lease of the lost groups. After this time it has registered, which stops
            # that run, or its keeper has frozen it.
            lost_wait_ms=self._rules.task_lease_ms + self._rules.lease_margin_ms,
            wall=value.wall,
        )
        self._commit.offer(value, command)
        if value.wall is not None:
            self._commit.offer(None, ReadWallClock(span=value.wall))
        return []

    def _on_wall_clock(self, value: WallClockSet, _now: int) -> list[Output]:
        if self.ready and self._commit.room is not Room.NONE:
            self._commit.offer(None, ReadWallClock(span=value.span))
        return []

    def _on_execute(self, value: Execute, _now: int) -> list[Output]:
        if self._commit.room is Room.NONE:
            return [Reply(request_id=value.request_id, result=self._commit.refusal or StorageFull())]
        if not self._commit.has_room_for_request(value.command):
            return [Reply(request_id=value.request_id, result=TooBusy(queued=self._commit.queued))]
        self._commit.offer(value.request_id, value.command)
        return []

    def _on_read(self, value: Read, now: int) -> list[Output]:
        return self._reads.add(value.request_id, now, is_stalled=self.stalled_ms(now) >= PATIENCE_MS)

    def _on_followed(self, value: Followed, _now: int) -> list[Output]:
        self._commit.follow(value.index, value.events)
        return [Publish(group=CommittedGroup(index=value.index, events=value.events))]

    # The pipeline

    def _on_decide(self, _value: DecideQueued, now: int) -> list[Output]:
        outputs: list[Output] = []
        while (group := self._commit.decide(now)) is not None:
            if group.index:
                append = Append(
                    index=group.index,
                    epoch=self.state.epoch,
                    payload=group.payload,
                    last_task=self.state.next_task_id - 1,
                )
                outputs.append(append)
                self._gate.on_append()
                self._appended_at = now
                break
            outputs += self._gate.hold(self._release(group, now), now)  # only refusals: no commit to wait for
        return outputs

    def _on_committed(self, value: Committed, now: int) -> list[Output]:
        self._end_stall(now)
        group = self._commit.commit(value.index)
        outputs = self._gate.on_committed() + self._release(group, now)
        outputs.append(Publish(group=CommittedGroup(index=group.index, events=group.events)))
        outputs += self._reads.confirmed()
        if forget_due(self.state, self._history_at, now):
            # One portion per group keeps groups short. Not waiting for the beat keeps memory bounded at any rate of
            # tasks.
            self._commit.offer(None, Tick(history_at=self._history_at))
        return outputs

    def _on_not_stored(self, value: NotStored, _now: int) -> list[Output]:
        """No client or node got a result of the group, so only the state must be restored."""
        self._commit.room = Room.NONE
        origins = self._commit.undo(value.index, value.state) + self._commit.drop_asked()
        outputs: list[Output] = [Reply(request_id=origin, result=value.refusal) for origin in origins]
        return outputs + self._reads.drop()

    def _on_confirmed(self, value: Confirmed, now: int) -> list[Output]:
        self._end_stall(now)
        return self._gate.on_confirmed(value.ticket) + self._reads.confirmed()

    def _on_loaded(self, value: Loaded, now: int) -> list[Output]:
        self._reads.loaded()
        if self.in_flight and not self._commit.is_readable and value.index == self.committed_index:
            self._commit.show_committed(value.state)
        return self._reads.overdue(now)

    def _release(self, group: Group, now: int) -> list[Output]:
        outputs: list[Output] = []
        for_agents: list[tuple[Origin, AgentResult]] = []
        for origin, result in group.results:
            if isinstance(origin, int):
                outputs.append(_reply(origin, result))
            elif isinstance(origin, Registering | Reported):
                for_agents.append((origin, None if isinstance(result, Failed) else result))
            elif isinstance(origin, Begin):
                self.ready = True
            if isinstance(result, Failed):
                outputs.append(Remark(event="command_failed", facts={"error": result.error}))
        outputs += self._route(self._agents.on_released(for_agents, group.events, now))
        return outputs

    def _on_room(self, value: RoomChanged, _now: int) -> list[Output]:
        self._commit.sure_bytes = value.sure_bytes
        if (value.room, value.trouble) == (self._commit.room, self._commit.trouble):
            return []
        self._commit.room, self._commit.trouble = value.room, value.trouble
        if value.room is Room.OK:
            self._commit.ask_for_pass(full=False)
        facts: dict[str, str | int] = {"room": value.room.value}
        if value.trouble:
            facts["trouble"] = value.trouble
        outputs: list[Output] = [Remark(event="storage_room_changed", facts=facts)]
        if value.room is Room.NONE:
            refusal = self._commit.refusal or StorageFull()
            outputs += [Reply(request_id=origin, result=refusal) for origin in self._commit.drop_asked()]
        return outputs

    # Agents and time

    def _on_agent_said(self, value: AgentSaid, now: int) -> list[Output]:
        return self._gate.hold(
            self._route(self._agents.on_said(value.connection_id, value.message, now)), now
        )

    def _on_agent_left(self, value: AgentLeft, _now: int) -> list[Output]:
        return self._route(self._agents.on_left(value.connection_id))

    def _on_time(self, _value: TimePassed, now: int) -> list[Output]:
        stalled_ms = self.stalled_ms(now)
        self._is_stalled = stalled_ms >= PATIENCE_MS
        if self._is_stalled:
            return self._on_stall(stalled_ms, now)
        # Without room nothing is decided; a command every second would only fill the queue.
        if not self.ready or self._commit.room is Room.NONE:
            self._ticked_at = now
            return []
        if now - self._ticked_at >= TICK_MS or _is_due(next_tick_at(self.state), now):
            self._ticked_at = now
            self._commit.offer(None, Tick(history_at=self._history_at))
        if now - self._full_pass_at >= self._full_pass_ms:
            self._full_pass_at = now
            self._commit.ask_for_pass(full=True)
        elif _is_due(next_wake_at(self.state), now):
            self._commit.ask_for_pass(full=False)
        return self._route(self._agents.on_time(now))

    def _on_stall(self, stalled_ms: int, now: int) -> list[Output]:
        """Nothing can be decided, and no silence of a node counts. Streams stay open, and reads get an older state."""
        outputs = self._reads.overdue(now)
        if stalled_ms >= min(_LONG_STALL_MS, self._rules.heartbeat_timeout_ms // 3):
            self._was_stalled = True
            self._agents.stalled(now)
        if now - self._ticked_at >= TICK_MS:
            self._ticked_at = now
            outputs += self._agents.keep_streams()
        return outputs

    def _end_stall(self, now: int) -> None:
        self._is_stalled = False
        if self._was_stalled:
            self._was_stalled = False
            self._agents.stalled(now)

    def _on_history(self, value: HistoryAdvanced, _now: int) -> list[Output]:
        self._history_at = max(self._history_at, value.at)
        return []

    def _route(self, effects: list[Effect]) -> list[Output]:
        outputs: list[Output] = []
        for effect in effects:
            if not isinstance(effect, Ask):
                outputs.append(effect)
            elif self._is_welcome(effect):
                self._commit.offer(effect.origin, effect.command)
            elif isinstance(effect.origin, Registering):
                connection_id = effect.origin.connection_id
                self._agents.on_left(connection_id)
                reason = "too many commands wait to be decided; try again"
                outputs.append(HangUp(connection_id=connection_id, reason=reason))
        return outputs

    def _is_welcome(self, ask: Ask) -> bool:
        """Commands that repeat by themselves are accepted only while there is room. Reports are bounded by their
        sessions.
        """
        command = ask.command
        return not isinstance(command, _COMES_AGAIN) or self._commit.has_room_for(command)


def _is_due(at: int | None, now: int) -> bool:
    return at is not None and at <= now


def _reply(request_id: int, result: Result) -> Output:
    if isinstance(result, Failed):
        return ReplyFailed(request_id=request_id, error=result.error)
    if isinstance(result, tuple | Rejection):
        return Reply(request_id=request_id, result=result)
    raise AssertionError("a request without a command")
