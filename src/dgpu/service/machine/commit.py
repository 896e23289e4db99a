"""The commit pipeline, without I/O: commands in, one journal record per group out, answers after it is durable.

While a group is in flight, commands queue undecided. So when a group is committed, the state is exactly the state in
the journal, and a reader at that moment sees nothing that could still be lost.
"""

from __future__ import annotations

from typing import Protocol, TypeAlias

import msgspec

from dgpu.core.apply.table import apply
from dgpu.core.commands import (
    CancelTasks,
    ChangePriority,
    Command,
    HoldTasks,
    RegisterNode,
    ReleaseTasks,
    ReportFinished,
    RunPass,
    SubmitTasks,
)
from dgpu.core.decide.schedule import pass_due
from dgpu.core.decide.table import decide
from dgpu.core.events import Event, GangPlaced, TaskPlaced
from dgpu.core.execute import execute
from dgpu.core.model.ids import NO_TASK
from dgpu.core.rejections import JournalUnavailable, Rejection, StorageFull
from dgpu.core.state import ClusterState
from dgpu.journal.journal import Room
from dgpu.service.machine.commit_queue import CommitQueue, Entry
from dgpu.wire.records import encode_group, join_groups

MAX_COMMAND_BYTES = 14 << 20  # far above the limit of REST, and always fits in a new segment
MAX_GROUP_COMMANDS = 1_000
MAX_GROUP_BYTES = 4 << 20
MAX_PLACED = 1_000

_COMMAND_BYTES = 200  # typical size of a small command in the journal


class Failed(msgspec.Struct, frozen=True, kw_only=True):
    """The decision hit a bug. Nothing was applied."""

    error: str


Result: TypeAlias = tuple[Event, ...] | Rejection | Failed | None  # None: a turn without a command


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Decided and applied in memory. `index` 0: no events, so there is nothing to write."""

    index: int
    events: tuple[Event, ...]
    results: tuple[tuple[object, Result], ...]
    payload: bytes
    commands: tuple[Entry, ...] = ()  # in the order in which they were decided


class Watch(Protocol):
    """Measures how long decisions take. The pipeline has no clock of its own."""

    def now_ns(self) -> int: ...

    def decided(self, commands: int, took_ns: int) -> None: ...

    def passed(self, placed: int, took_ns: int) -> None: ...


class CommitPipeline:
    def __init__(self, state: ClusterState, last_index: int) -> None:
        self.last_index = last_index  # committed
        self.room = Room.OK
        self.trouble = ""  # other than a full disk; it makes the scheduler refuse submits
        self.sure_bytes = 4 * MAX_GROUP_BYTES
        self.in_flight: Group | None = None
        self.watch: Watch | None = None
        self._state = state
        self._decided: ClusterState | None = (
            None  # with the group in flight, while readers see the state before it
        )
        self._queue = CommitQueue()
        self._pass_due = False
        self._full_pass_due = False

    @property
    def queued(self) -> int:
        return len(self._queue)

    @property
    def awaits_calm(self) -> bool:
        """The next group may wait for a moment (`CommitQueue.awaits_calm`). A due pass does not wait."""
        return self._queue.awaits_calm and not self._pass_due

    def has_room_for(self, command: Command) -> bool:
        """For commands of agents that repeat by themselves."""
        return self._queue.has_room_for(_size_bytes(command))

    def has_room_for_request(self, command: Command) -> bool:
        size_bytes = _size_bytes(command)
        if size_bytes > MAX_COMMAND_BYTES:
            return False
        return self._queue.lane_has_room_for(_tenant_of(command, self._state), size_bytes)

    def offer(self, origin: object, command: Command | None) -> None:
        if command is None:
            self._queue.put(Entry(origin, None, 0))
        else:
            self._queue.put(Entry(origin, command, _size_bytes(command), _tenant_of(command, self._state)))

    def ask_for_pass(self, *, full: bool) -> None:
        self._pass_due = True
        self._full_pass_due = self._full_pass_due or full

    @property
    def refusal(self) -> StorageFull | JournalUnavailable | None:
        """The refusal of a submit at this moment; None: submits are accepted."""
        if self.trouble:
            return JournalUnavailable(reason=self.trouble)
        return None if self.room is Room.OK else StorageFull()

    def decide(self, now: int) -> Group | None:
        """The next group, or None: a group is in flight, the queue is empty, or there is no room."""
        if self.in_flight is not None or self.room is Room.NONE or not (self._queue or self._pass_due):
            return None
        at = max(self._state.last_at, now)
        decided = _Decided(self._state, at)
        began_ns = self.watch.now_ns() if self.watch else 0
        self._take_queued(decided)
        if self.watch and decided.results:
            self.watch.decided(len(decided.results), self.watch.now_ns() - began_ns)
        self._run_pass(decided)
        if not decided.results and not decided.events:
            return None
        index = self.last_index + 1 if decided.events else 0
        group = Group(
            index=index,
            events=tuple(decided.events),
            results=tuple(decided.results),
            payload=join_groups(decided.parts) if index else b"",
            commands=tuple(decided.commands) if index else (),
        )
        if index:
            self.in_flight = group
        return group

    def commit(self, index: int) -> Group:
        group = self.in_flight
        if group is None or group.index != index:
            raise AssertionError(
                f"record {index} was committed, {group.index if group else 'none'} was in flight"
            )
        self.in_flight = None
        self.last_index = index
        if self._decided is not None:
            self._state.become(self._decided)
            self._decided = None
        return group

    def follow(self, index: int, events: tuple[Event, ...]) -> None:
        """A group that was committed elsewhere."""
        if index != self.last_index + 1 or self.in_flight is not None:
            raise AssertionError(f"group {index} cannot follow {self.last_index}")
        for event in events:
            apply(self._state, event)
        self.last_index = index

    @property
    def is_readable(self) -> bool:
        """The state is at a committed point."""
        return self.in_flight is None or self._decided is not None

    def show_committed(self, state: ClusterState) -> None:
        """While the group in flight takes long, readers get the state before it."""
        self._decided = ClusterState()
        self._decided.become(self._state)
        self._state.become(state)

    def undo(self, index: int, state: ClusterState) -> list[int]:
        """The group in flight is not stored anywhere: restores the state before it.

        Commands of agents and of the scheduler itself are queued again, at the front. Returns the origins of all other
        commands: those clients can retry.
        """
        group = self.in_flight
        if group is None or group.index != index:
            raise AssertionError(
                f"record {index} was not stored, {group.index if group else 'none'} was in flight"
            )
        self.in_flight = self._decided = None
        self._state.become(state)
        self._queue.put_back(entry for entry in group.commands if not entry.is_request)
        self.ask_for_pass(full=True)
        return [origin for origin, _ in group.results if isinstance(origin, int)]

    def drop_asked(self) -> list[int]:
        """Removes undecided requests, whose clients can retry. Commands of agents and of the scheduler stay queued."""
        return self._queue.drop_requests()

    def _take_queued(self, decided: _Decided) -> None:
        self._queue.begin_group(decided.at)
        # Sizes are estimates; a record may be twice as large.
        sure_bytes = self.sure_bytes // 2
        budget_bytes = min(MAX_GROUP_BYTES, sure_bytes)
        while len(decided.results) < MAX_GROUP_COMMANDS and (entry := self._queue.first()) is not None:
            refusal = self.refusal if isinstance(entry.command, SubmitTasks) else None
            size_bytes = entry.size_bytes
            if refusal is None and size_bytes > budget_bytes and (decided.results or size_bytes > sure_bytes):
                break  # for the next group, or until the next segment is ready
            self._queue.take()
            budget_bytes -= size_bytes
            if refusal is not None:
                decided.results.append((entry.origin, refusal))
            else:
                decided.take(entry)

    def _run_pass(self, decided: _Decided) -> None:
        # The reserve is for reports on running tasks. Placing more tasks would use it up.
        if self.room is not Room.OK or not (self._pass_due or pass_due(self._state)):
            return
        if decided.at < self._state.no_pass_before:
            return
        full = self._full_pass_due
        self._pass_due = self._full_pass_due = False
        began_ns = self.watch.now_ns() if self.watch else 0
        events = execute(self._state, RunPass(at=decided.at, limit=MAX_PLACED, full=full))
        if isinstance(events, Rejection):
            raise AssertionError(f"a pass was refused: {events}")  # noqa: TRY004 - a bug, not a wrong type
        if events:
            decided.keep(events)
        placed = sum(isinstance(event, TaskPlaced | GangPlaced) for event in events)
        if self.watch:
            self.watch.passed(placed, self.watch.now_ns() - began_ns)
        if placed >= MAX_PLACED or self._state.dependents.broken:
            self._pass_due = True  # the loop gets a turn first


class _Decided:
    """The results of a group so far."""

    def __init__(self, state: ClusterState, at: int) -> None:
        self.at = at
        self.events: list[Event] = []
        self.parts: list[tuple[int, bytes]] = []
        self.results: list[tuple[object, Result]] = []
        self.commands: list[Entry] = []
        self._state = state

    def take(self, entry: Entry) -> None:
        self.commands.append(entry)
        command = entry.command
        self.results.append((entry.origin, None if command is None else self._decide(command)))

    def keep(self, events: tuple[Event, ...], encoded: bytes | None = None) -> None:
        self.events += events
        self.parts.append((len(events), encoded or encode_group(events)))

    def _decide(self, command: Command) -> Result:
        """Refuses a command that cannot be decided or encoded, before it changes anything."""
        try:
            events = decide(self._state, msgspec.structs.replace(command, at=self.at))
            if isinstance(events, Rejection) or not events:
                return events
            encoded = encode_group(events)
        except Exception as error:  # noqa: BLE001 - a bug in one decision must not affect other commands
            return Failed(error=f"{type(command).__name__}: {type(error).__name__}: {error}")
        for event in events:
            apply(self._state, event)
        self.keep(events, encoded)
        return events


def _size_bytes(command: Command) -> int:
    match command:
        case SubmitTasks():
            return sum(_COMMAND_BYTES + len(spec.detail) for _, spec in command.entries)
        case ReportFinished():
            return _COMMAND_BYTES + 2 * len(command.error)
        case RegisterNode():
            return _COMMAND_BYTES * (1 + len(command.gpus) + len(command.held))
        case CancelTasks(task_ids=tuple() as task_ids):
            return _COMMAND_BYTES + 40 * len(task_ids)
        case _:
            return _COMMAND_BYTES


def _tenant_of(command: Command, state: ClusterState) -> str:
    """The tenant for which a request is decided; empty: it is for none, or for a task that has left the memory."""
    match command:
        case SubmitTasks():
            return command.entries[0][1].shape.tenant_id if command.entries else ""
        case CancelTasks(task_ids=None):
            return command.tenant_id or ""
        case CancelTasks() | HoldTasks() | ReleaseTasks() | ChangePriority():
            task = state.tasks.get(next(iter(command.task_ids or ()), NO_TASK))
            return "" if task is None else state.shapes[task.shape_id].tenant_id
        case _:
            return ""
