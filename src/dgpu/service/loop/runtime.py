"""The scheduler machine on an asyncio loop: futures for answers, a thread for the journal, a timer for the beat.

This module decides nothing. It gathers the inputs of one turn of the loop; the machine then decides them as one group.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TypeVar

import msgspec
import structlog

from dgpu.core.commands import Command
from dgpu.core.decide.submit import is_history_behind
from dgpu.core.model.ids import GpuId, NodeId
from dgpu.core.model.wall_span import newest_span
from dgpu.core.rejections import Rejection
from dgpu.core.state import ClusterState
from dgpu.core.wall_clock import differs
from dgpu.journal.journal import Group, Journal, Room, Sighting
from dgpu.journal.mark import AcknowledgedMark
from dgpu.service.loop.alarm import Alarm
from dgpu.service.loop.answers import Answer, Answers
from dgpu.service.loop.anticipation import Anticipation
from dgpu.service.loop.clock import DOUBT_MS, Clock
from dgpu.service.loop.collector import Collector
from dgpu.service.loop.committed import load_committed
from dgpu.service.loop.failures import NotMaster, or_end
from dgpu.service.loop.journal_thread import JournalThread
from dgpu.service.loop.links import AgentLink
from dgpu.service.loop.patience import Patience
from dgpu.service.loop.quorum import Quorum
from dgpu.service.loop.read_mark import mark_read
from dgpu.service.loop.repairs import Repairs
from dgpu.service.loop.stalls import Stalls
from dgpu.service.loop.subscribers import Subscribers
from dgpu.service.machine import inputs, outputs
from dgpu.service.machine.agent_words import GpuSample
from dgpu.service.machine.contact import NodeContact
from dgpu.service.machine.scheduler import Scheduler
from dgpu.service.metrics.meters import Meters
from dgpu.wire.proto.agent_pb2 import FromAgent

T = TypeVar("T")

_ROOM_RETRY_S = 0.02
_STOP_PATIENCE_S = 10.0

_log = structlog.get_logger("dgpu.scheduler")


class Runtime:
    """`quorum`: None for a lone scheduler. With one, the runtime follows until `start`."""

    def __init__(
        self,
        scheduler: Scheduler,
        journal: Journal,
        clock: Clock,
        mark: AcknowledgedMark | None = None,
        quorum: Quorum | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._quorum = quorum
        self._leads = quorum is None
        self._is_gone = False  # stepped down: nothing more is answered or sent
        self._journal = journal
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._thread = JournalThread(
            journal,
            self._loop,
            on_committed=self._on_committed,
            on_not_stored=self._on_not_stored,
            on_sighting=self._on_sighting,
            on_fenced=self._on_fenced,
            mark=mark,
        )
        self.hindrance = ""  # why submits are refused although the journal can be written; set from outside
        self.repairs = Repairs()
        self.on_snapshot_due: Callable[[], None] = lambda: None
        self._next_id = 0
        self._answers = Answers(self._loop)
        self._patience = Patience(self._loop, self._answers, lambda: self._put(inputs.TimePassed()))
        self._links: dict[int, AgentLink] = {}
        self.meters = Meters(scheduler.state)
        scheduler.watch_with(self.meters)
        self._subscribers = Subscribers(self.meters.on_group)
        self._unsettled: list[outputs.Output] = []  # of the last commit: Publish, and reads after it
        self._decide_handle: asyncio.Handle | None = None
        self._alarm = Alarm(self._loop, clock, self._on_beat)
        self._anticipation = Anticipation(self._loop, self._decide)
        self._collector = Collector()
        self._stalls = Stalls()
        self.contradicted: outputs.Contradicted | None = None  # of the node that obeyed the highest epoch
        self.on_remark: Callable[[outputs.Remark], None] = lambda _: None
        self.on_contradicted: Callable[[outputs.Contradicted], None] = lambda _: None  # called in a thread
        self._started: asyncio.Future[None] = self._loop.create_future()
        self._carry_out = self._carriers()

    async def start(self, begin: inputs.Begin) -> None:
        """Returns when the new epoch is durable, or when there is no room for it: then `ready` is false."""
        self._leads = True
        self._put(msgspec.structs.replace(begin, wall=self._clock.span))
        self._on_beat(0)
        await self._started

    async def stop(self) -> None:
        """Commits pending commands; no new ones may come. Tasks and agents continue."""
        if self._is_gone:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STOP_PATIENCE_S):
                while (
                    self._scheduler.in_flight
                    or self._unsettled
                    or (self._scheduler.queued and self._scheduler.room is Room.OK)
                ):
                    self._want_decision()
                    await asyncio.sleep(0.001)
        self._alarm.cancel()
        if self._quorum is not None and self._scheduler.in_flight:
            self._quorum.step_down()  # the engine does not answer: the next start learns the outcome
        await asyncio.to_thread(self._thread.stop)

    def follow(self, groups: list[Group]) -> None:
        """Groups that another scheduler committed. They are in the local files already."""
        for group in groups:
            followed = inputs.Followed(index=group.index, events=tuple(group.events))
            with or_end():
                self._carry(self._scheduler.on_input(followed, self._clock.now_ms()))

    async def abandon(self) -> None:
        """The leadership is lost. The state may hold a group that was never committed, so nothing of it may leave."""
        self._is_gone, self._leads = True, False
        self._alarm.cancel()
        self._anticipation.end()
        if self._decide_handle is not None:
            self._decide_handle.cancel()
        self._answers.fail(self._scheduler.requests_in_flight)
        if not self._started.done():
            self._started.set_exception(NotMaster())
        await asyncio.to_thread(self._thread.stop)

    # Used by REST and gRPC

    @property
    def leads(self) -> bool:
        """Commands are accepted. A lone scheduler always leads."""
        return self._leads

    def stalled_ms(self) -> int:
        """How long the engine of the journal has not answered."""
        return self._scheduler.stalled_ms(self._clock.now_ms())

    @property
    def ready(self) -> bool:
        return self._scheduler.ready

    @property
    def epoch(self) -> int:
        return self._scheduler.state.epoch

    @property
    def epoch_unknown(self) -> str:
        """Why nodes were refused that obeyed an epoch which the journal does not have; empty: no refusal."""
        return "" if self.contradicted is None else self.contradicted.reason

    @property
    def committed_index(self) -> int:
        return self._scheduler.committed_index

    @property
    def room(self) -> Room:
        return self._scheduler.room

    @property
    def trouble(self) -> str:
        """Why submits are refused although the disk is not full. Also correct while a group is in flight."""
        return self._journal.trouble or self.hindrance

    def begin_segment(self) -> None:
        """A snapshot covers all committed groups: later groups go to a file that needs no earlier one."""
        self._thread.begin_segment()

    @property
    def history_behind(self) -> bool:
        """Finished tasks pile up in memory, so new tasks are refused."""
        return is_history_behind(self._scheduler.state)

    @property
    def telemetry(self) -> dict[GpuId, GpuSample]:
        return self._scheduler.telemetry

    @property
    def unsent(self) -> list[int]:
        """The number of unsent messages of each agent's stream."""
        return [link.unsent for link in self._links.values()]

    @property
    def queued(self) -> int:
        """The number of undecided commands."""
        return self._scheduler.queued

    def node_contact(self, node_id: NodeId) -> NodeContact:
        return self._scheduler.contact(node_id)

    def session_of(self, node_id: NodeId) -> str:
        """The session in which a node is registered now; empty: not registered."""
        return self._scheduler.session_of(node_id)

    def now_ms(self) -> int:
        """The time of the journal, for order and durations. `wire.wall_time` converts it for display."""
        return self._clock.now_ms()

    def clocks_ahead(self) -> dict[NodeId, int]:
        """Nodes whose wall clock differs from the scheduler's, in milliseconds."""
        nodes = self._scheduler.state.nodes
        found = {node_id: self._scheduler.contact(node_id).clock_ahead_ms for node_id in nodes}
        return {node_id: ahead_ms for node_id, ahead_ms in found.items() if abs(ahead_ms) >= DOUBT_MS}

    @property
    def clock(self) -> Clock:
        return self._clock

    def execute(self, command: Command) -> asyncio.Future[Answer]:
        """Returns a future: the answer comes after the commit."""
        self._next_id = request_id = self._next_id + 1
        future = self._answers.of_command(request_id)
        if not self._leads:
            self._answers.refuse(request_id)
            return future
        self._put(inputs.Execute(request_id=request_id, command=command))
        return future

    async def read(self, look: Callable[[ClusterState], T]) -> T:
        """Reads at a committed point: at once, or right after the group in flight. `look` must not keep the state.

        With an engine, the leadership is confirmed first. If that takes long, the read sees the last committed state.
        """
        if self._quorum is None or not self._leads:
            if self._is_gone:
                raise NotMaster
            if not self._scheduler.in_flight and not self._unsettled:
                return look(self._scheduler.state)
        self._next_id = request_id = self._next_id + 1
        future = self._answers.of_read(request_id, look)
        if self._unsettled and self._quorum is None:
            self._unsettled.append(outputs.ReadNow(request_id=request_id))
        else:
            self._put(inputs.Read(request_id=request_id))
            if self._quorum is not None:
                self._patience.begin()
        result, is_stale = await future
        mark_read(is_stale=is_stale)
        return result

    def subscribe(self, callback: Callable[[outputs.CommittedGroup], None]) -> Callable[[], None]:
        """Calls back in order after each commit, while the state is that of the group. The result unsubscribes."""
        return self._subscribers.add(callback)

    def connect_agent(self, link: AgentLink) -> int:
        self._next_id = connection_id = self._next_id + 1
        self._links[connection_id] = link
        return connection_id

    def agent_said(self, connection_id: int, message: FromAgent) -> None:
        if connection_id in self._links:
            self._put(inputs.AgentSaid(connection_id=connection_id, message=message))

    def agent_left(self, connection_id: int) -> None:
        if self._links.pop(connection_id, None) is not None:
            self._put(inputs.AgentLeft(connection_id=connection_id))

    def history_advanced(self, at: int) -> None:
        self._put(inputs.HistoryAdvanced(at=at))

    # Driving the machine

    def _put(self, value: inputs.Input) -> None:
        if self._is_gone:
            return
        if steps := self._scheduler.on_input(value, self._clock.now_ms()):
            self._carry(steps)
        if self._decide_handle is None and not self._scheduler.in_flight:
            self._want_decision()

    def _want_decision(self) -> None:
        # Not at once: later inputs in this turn of the loop share the group and its fsync.
        if self._decide_handle is None:
            self._decide_handle = self._loop.call_soon(self._decide)

    def _decide(self) -> None:
        self._decide_handle = None
        if self._scheduler.in_flight:
            return
        with or_end():
            self._settle()
        if self._anticipation.holds(is_wanted=self._scheduler.awaits_calm):
            return
        now = self._clock.now_ms()
        with or_end():
            self._tell_room()
            self._carry(self._scheduler.on_input(inputs.DecideQueued(), now))
        if not self._scheduler.in_flight and self._scheduler.queued:
            self._start_without_room()
            self._alarm.set(now + int(_ROOM_RETRY_S * 1_000))
        else:
            self._alarm.set(self._scheduler.wake_at())

    def _on_committed(self, index: int, took_s: float) -> None:
        if self._is_gone or self._is_held(lambda: self._on_committed(index, took_s)):
            return
        self.meters.fsync.observe(took_s)
        with or_end():
            steps = self._scheduler.on_input(inputs.Committed(index=index), self._clock.now_ms())
            published = next(place for place, step in enumerate(steps) if isinstance(step, outputs.Publish))
            self._unsettled = steps[published:]
            self._carry(steps[:published])
        if self._decide_handle is None:
            self._decide_handle = self._loop.call_soon(self._decide_later)

    def _is_held(self, action: Callable[[], None]) -> bool:
        """Whether effects must wait, because the lease of the leadership may end."""
        if self._quorum is None or self._quorum.may_act():
            return False
        self._quorum.when_allowed(action)
        return True

    def _on_confirmed(self, ticket: int) -> None:
        if self._is_gone or self._is_held(lambda: self._on_confirmed(ticket)):
            return
        with or_end():
            self._settle()  # readers must find the views as new as the state
            self._carry(self._scheduler.on_input(inputs.Confirmed(ticket=ticket), self._clock.now_ms()))

    def _on_fenced(self, why: str) -> None:
        if self._quorum is not None:
            self._quorum.on_fenced(why)

    def _on_not_stored(self, value: inputs.NotStored) -> None:
        with or_end():
            self._carry(self._scheduler.on_input(value, self._clock.now_ms()))
        self._want_decision()

    def _on_sighting(self, sighting: Sighting) -> None:
        for note in sighting.notes:
            _log.warning("journal_files_changed", detail=note)
        if sighting.trouble:
            _log.error("journal_files_gone", detail=sighting.trouble)
            self._tell_room()
        if sighting.notes:
            self.repairs.note("; ".join(sighting.notes))
        if sighting.snapshot_due:
            self.on_snapshot_due()
        self._want_decision()

    def _tell_room(self) -> None:
        journal = self._journal
        room = inputs.RoomChanged(
            room=journal.room, trouble=self.trouble, sure_bytes=journal.sure_payload_bytes
        )
        self._carry(self._scheduler.on_input(room, self._clock.now_ms()))

    def _start_without_room(self) -> None:
        """Known tasks can be read even while the new epoch waits for room."""
        if self._scheduler.room is Room.NONE and not self._started.done():
            self._started.set_result(None)

    def _decide_later(self) -> None:
        """Waits one more turn of the loop, in which waiting callers resume. Their answers and the orders to agents are
        sent before subscribers get the group and the next one is decided.
        """
        self._decide_handle = self._loop.call_soon(self._decide)

    def _settle(self) -> None:
        """All readers see the state before the next group changes it."""
        steps, self._unsettled = self._unsettled, []
        self._carry(steps)
        if self._scheduler.ready and not self._started.done():
            self._started.set_result(None)

    def _on_beat(self, due_at: int) -> None:
        if due_at:
            self._stalls.on_beat(self._clock.now_ms() - due_at)
        self._alarm.set(self._clock.now_ms() + 1_000)
        if self._scheduler.room is not Room.OK or self._journal.room_lacks:
            self._thread.make_room()
        self._thread.look()
        self._collector.on_beat()
        self._clock.look()
        if differs(newest_span(self._scheduler.state.wall), self._clock.span):
            self._put(inputs.WallClockSet(span=self._clock.span))
        self._put(inputs.TimePassed())

    # Carrying out

    def _carriers(self) -> dict[type[outputs.Output], Callable[..., None]]:
        return {
            outputs.Reply: self._reply,
            outputs.Append: self._append,
            outputs.Publish: self._subscribers.publish,
            outputs.Tell: self._tell,
            outputs.ReadNow: self._read_now,
            outputs.HangUp: self._hang_up,
            outputs.ReplyFailed: self._answers.reply_failed,
            outputs.Contradicted: self._contradicted,
            outputs.Remark: self._remark,
            outputs.Confirm: self._confirm,
            outputs.LoadCommitted: self._load_committed,
        }

    def _carry(self, steps: list[outputs.Output]) -> None:
        for output in steps:
            self._carry_out[type(output)](output)

    def _append(self, output: outputs.Append) -> None:
        self._collector.on_append()
        self.meters.journal_bytes += len(output.payload)
        self._thread.append(output)

    def _reply(self, output: outputs.Reply) -> None:
        if isinstance(output.result, Rejection):
            self.meters.on_refused(output.result.code)
        self._answers.reply(output)

    def _read_now(self, output: outputs.ReadNow) -> None:
        self._answers.read_now(output, self._scheduler.state)

    def _contradicted(self, output: outputs.Contradicted) -> None:
        if self.contradicted is None or output.epoch > self.contradicted.epoch:
            self.contradicted = output
            self._loop.run_in_executor(None, self.on_contradicted, output)

    def _tell(self, output: outputs.Tell) -> None:
        link = self._links.get(output.connection_id)
        if link is not None:
            link.send(output.message)

    def _hang_up(self, output: outputs.HangUp) -> None:
        link = self._links.pop(output.connection_id, None)
        if link is not None:
            link.hang_up(output.reason, fault=output.fault)

    def _confirm(self, output: outputs.Confirm) -> None:
        if self._quorum is not None:
            self._quorum.confirm(lambda: self._on_confirmed(output.ticket))

    def _load_committed(self, output: outputs.LoadCommitted) -> None:
        if self._quorum is not None:
            loading = load_committed(self._journal, self._quorum, output.index, self._put)
            self._loading = self._loop.create_task(loading)

    def _remark(self, output: outputs.Remark) -> None:
        _log.info(output.event, **output.facts)
        self.on_remark(output)
