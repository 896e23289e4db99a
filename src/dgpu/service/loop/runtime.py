"""The scheduler machine on an asyncio loop: futures for answers, a thread for the journal, a timer for the beat.

This module decides nothing. It gathers the inputs of one turn of the loop; the machine then decides them as one group.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar

import msgspec
import structlog

from dgpu.core.commands import Command
from dgpu.core.decide.submit import is_history_behind
from dgpu.core.events import Event
from dgpu.core.model.ids import GpuId, NodeId
from dgpu.core.model.wall_span import newest_span
from dgpu.core.rejections import Rejection
from dgpu.core.state import ClusterState
from dgpu.core.wall_clock import differs
from dgpu.journal.journal import Journal, Room, Sighting
from dgpu.journal.mark import AcknowledgedMark
from dgpu.service.loop.clock import DOUBT_MS, Clock
from dgpu.service.loop.collector import Collector
from dgpu.service.loop.journal_thread import JournalThread, end_process
from dgpu.service.loop.stalls import Stalls
from dgpu.service.machine.agent_words import GpuSample
from dgpu.service.machine.contact import NodeContact
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
    Contradicted,
    HangUp,
    Output,
    Publish,
    ReadNow,
    Remark,
    Reply,
    ReplyFailed,
    Tell,
)
from dgpu.service.machine.scheduler import Scheduler
from dgpu.service.metrics.meters import Meters
from dgpu.wire.proto.agent_pb2 import FromAgent, FromScheduler

T = TypeVar("T")
Answer = tuple[Event, ...] | Rejection

_ROOM_RETRY_S = 0.02
_STOP_PATIENCE_S = 10.0
_REPAIRED_S = 600.0  # how long an alert reports a repair

_log = structlog.get_logger("dgpu.scheduler")


class CommandFailed(RuntimeError):  # noqa: N818 - the name states the failure
    """The decision of a command hit a bug. The command had no effect."""


class AgentLink(Protocol):
    """The scheduler's end of one agent's stream."""

    def send(self, message: FromScheduler) -> None: ...

    def hang_up(self, reason: str, *, fault: bool) -> None: ...

    @property
    def unsent(self) -> int: ...


class Runtime:
    def __init__(
        self, scheduler: Scheduler, journal: Journal, clock: Clock, mark: AcknowledgedMark | None = None
    ) -> None:
        self._scheduler = scheduler
        self._journal = journal
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._thread = JournalThread(
            journal,
            self._loop,
            on_committed=self._on_committed,
            on_not_stored=self._on_not_stored,
            on_sighting=self._on_sighting,
            mark=mark,
        )
        self.hindrance = ""  # why submits are refused although the journal can be written; set from outside
        self._repaired = ""
        self._repaired_s = 0.0
        self.on_snapshot_due: Callable[[], None] = lambda: None
        self._next_id = 0
        self._futures: dict[int, asyncio.Future[Answer]] = {}
        self._reads: dict[int, Callable[[], None]] = {}
        self._links: dict[int, AgentLink] = {}
        self.meters = Meters(scheduler.state)
        scheduler.watch_with(self.meters)
        self._subscribers: list[Callable[[CommittedGroup], None]] = [self.meters.on_group]
        self._unsettled: list[Output] = []  # of the last commit: its Publish, and reads that waited for it
        self._decide_handle: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0
        self._collector = Collector()
        self._stalls = Stalls()
        self.contradicted: Contradicted | None = None  # of the node that obeyed the highest epoch
        self.on_remark: Callable[[Remark], None] = lambda _: None
        self.on_contradicted: Callable[[Contradicted], None] = lambda _: None  # called in a thread
        self._started: asyncio.Future[None] = self._loop.create_future()
        self._carry_out: dict[type[Output], Callable[..., None]] = {
            Reply: self._reply,
            Append: self._append,
            Publish: self._publish,
            Tell: self._tell,
            ReadNow: self._read_now,
            HangUp: self._hang_up,
            ReplyFailed: self._reply_failed,
            Contradicted: self._contradicted,
            Remark: self._remark,
        }

    async def start(self, begin: Begin) -> None:
        """Returns when the new epoch is durable, or when there is no room for it: then `ready` is false."""
        self._put(msgspec.structs.replace(begin, wall=self._clock.span))
        self._on_beat()
        await self._started

    async def stop(self) -> None:
        """Commits pending commands; no new ones may come. Tasks and agents continue."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STOP_PATIENCE_S):
                while (
                    self._scheduler.in_flight
                    or self._unsettled
                    or (self._scheduler.queued and self._scheduler.room is Room.OK)
                ):
                    self._want_decision()
                    await asyncio.sleep(0.001)
        if self._timer is not None:
            self._timer.cancel()
        await asyncio.to_thread(self._thread.stop)

    # Used by REST and gRPC

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
    def repaired_of_late(self) -> str:
        """Files that were found deleted or replaced in the last minutes."""
        return self._repaired if time.monotonic() - self._repaired_s < _REPAIRED_S else ""

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
        future: asyncio.Future[Answer] = self._loop.create_future()
        self._futures[request_id] = future
        self._put(Execute(request_id=request_id, command=command))
        return future

    async def read(self, look: Callable[[ClusterState], T]) -> T:
        """Reads at a committed point: at once, or right after the group in flight. `look` must not keep the state."""
        if not self._scheduler.in_flight and not self._unsettled:
            return look(self._scheduler.state)
        self._next_id = request_id = self._next_id + 1
        future: asyncio.Future[T] = self._loop.create_future()

        def run() -> None:
            if not future.done():
                try:
                    future.set_result(look(self._scheduler.state))
                except Exception as error:  # noqa: BLE001 - the caller gets it
                    future.set_exception(error)

        self._reads[request_id] = run
        if self._unsettled:
            self._unsettled.append(ReadNow(request_id=request_id))
        else:
            self._put(Read(request_id=request_id))
        return await future

    def subscribe(self, callback: Callable[[CommittedGroup], None]) -> Callable[[], None]:
        """Calls back in order after each commit, while the state is that of the group. The result unsubscribes."""
        self._subscribers.append(callback)

        def unsubscribe() -> None:
            with contextlib.suppress(ValueError):
                self._subscribers.remove(callback)

        return unsubscribe

    def connect_agent(self, link: AgentLink) -> int:
        self._next_id = connection_id = self._next_id + 1
        self._links[connection_id] = link
        return connection_id

    def agent_said(self, connection_id: int, message: FromAgent) -> None:
        if connection_id in self._links:
            self._put(AgentSaid(connection_id=connection_id, message=message))

    def agent_left(self, connection_id: int) -> None:
        if self._links.pop(connection_id, None) is not None:
            self._put(AgentLeft(connection_id=connection_id))

    def history_advanced(self, at: int) -> None:
        self._put(HistoryAdvanced(at=at))

    # Driving the machine

    def _put(self, value: Input) -> None:
        outputs = self._scheduler.on_input(value, self._clock.now_ms())
        if outputs:
            self._carry(outputs)
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
        with _or_end():
            self._settle()
        now = self._clock.now_ms()
        with _or_end():
            self._tell_room()
            self._carry(self._scheduler.on_input(DecideQueued(), now))
        if not self._scheduler.in_flight and self._scheduler.queued:
            self._start_without_room()
            self._beat_at(now + int(_ROOM_RETRY_S * 1_000))
        else:
            self._beat_at(self._scheduler.wake_at())

    def _on_committed(self, index: int, took_s: float) -> None:
        self.meters.fsync.observe(took_s)
        with _or_end():
            outputs = self._scheduler.on_input(Committed(index=index), self._clock.now_ms())
            published = next(place for place, output in enumerate(outputs) if isinstance(output, Publish))
            self._unsettled = outputs[published:]
            self._carry(outputs[:published])
        if self._decide_handle is None:
            self._decide_handle = self._loop.call_soon(self._decide_later)

    def _on_not_stored(self, value: NotStored) -> None:
        with _or_end():
            self._carry(self._scheduler.on_input(value, self._clock.now_ms()))
        self._want_decision()

    def _on_sighting(self, sighting: Sighting) -> None:
        for note in sighting.notes:
            _log.warning("journal_files_changed", detail=note)
        if sighting.trouble:
            _log.error("journal_files_gone", detail=sighting.trouble)
            self._tell_room()
        if sighting.notes:
            self._note_repair("; ".join(sighting.notes))
        if sighting.snapshot_due:
            self.on_snapshot_due()
        self._want_decision()

    def report_repair(self, note: str) -> None:
        """Files of stored output were deleted or replaced."""
        _log.warning("output_files_changed", detail=note)
        self._note_repair(note)

    def _note_repair(self, note: str) -> None:
        self.meters.journal_repairs += 1
        self._repaired = note
        self._repaired_s = time.monotonic()

    def _tell_room(self) -> None:
        journal = self._journal
        room = RoomChanged(room=journal.room, trouble=self.trouble, sure_bytes=journal.sure_payload_bytes)
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
        outputs, self._unsettled = self._unsettled, []
        self._carry(outputs)
        if self._scheduler.ready and not self._started.done():
            self._started.set_result(None)

    def _beat_at(self, at: int) -> None:
        if self._timer is not None:
            if self._timer_at <= at:
                return
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._loop.call_later(max(0, at - self._clock.now_ms()) / 1_000, self._on_beat)

    def _on_beat(self) -> None:
        self._timer = None
        if self._timer_at:
            self._stalls.on_beat(self._clock.now_ms() - self._timer_at)
        self._beat_at(self._clock.now_ms() + 1_000)
        if self._scheduler.room is not Room.OK or self._journal.room_lacks:
            self._thread.make_room()
        self._thread.look()
        self._collector.on_beat()
        self._clock.look()
        if differs(newest_span(self._scheduler.state.wall), self._clock.span):
            self._put(WallClockSet(span=self._clock.span))
        self._put(TimePassed())

    # Carrying out

    def _carry(self, outputs: list[Output]) -> None:
        for output in outputs:
            self._carry_out[type(output)](output)

    def _append(self, output: Append) -> None:
        self._collector.on_append()
        self.meters.journal_bytes += len(output.payload)
        self._thread.append(output)

    def _reply(self, output: Reply) -> None:
        future = self._futures.pop(output.request_id)
        if isinstance(output.result, Rejection):
            self.meters.on_refused(output.result.code)
        if not future.done():
            future.set_result(output.result)

    def _reply_failed(self, output: ReplyFailed) -> None:
        future = self._futures.pop(output.request_id)
        if not future.done():
            future.set_exception(CommandFailed(output.error))

    def _read_now(self, output: ReadNow) -> None:
        self._reads.pop(output.request_id)()

    def _publish(self, output: Publish) -> None:
        for callback in tuple(self._subscribers):
            try:
                callback(output.group)
            except Exception:  # noqa: BLE001 - a bug of one subscriber must not affect the others
                _log.exception("subscriber_failed", index=output.group.index)

    def _contradicted(self, output: Contradicted) -> None:
        if self.contradicted is None or output.epoch > self.contradicted.epoch:
            self.contradicted = output
            self._loop.run_in_executor(None, self.on_contradicted, output)

    def _tell(self, output: Tell) -> None:
        link = self._links.get(output.connection_id)
        if link is not None:
            link.send(output.message)

    def _hang_up(self, output: HangUp) -> None:
        link = self._links.pop(output.connection_id, None)
        if link is not None:
            link.hang_up(output.reason, fault=output.fault)

    def _remark(self, output: Remark) -> None:
        _log.info(output.event, **output.facts)
        self.on_remark(output)


@contextlib.contextmanager
def _or_end() -> Iterator[None]:
    """After a bug in this block, memory and journal may differ; only reading the journal again makes them equal."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - see above
        _log.exception("scheduler_failed")
        end_process(f"a bug in the scheduler: {error}")
