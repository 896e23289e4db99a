"""The commit pipeline, without I/O: commands in, one journal record per group out, answers after it is durable.

While a group is in flight, commands queue undecided. So when a group is committed, the state is exactly the state in
the journal, and a reader at that moment sees nothing that could still be lost.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol, TypeAlias

import msgspec

from dgpu.core.apply.table import apply
from dgpu.core.commands import CancelTasks, Command, RegisterNode, ReportFinished, RunPass, SubmitTasks
from dgpu.core.decide.table import decide
from dgpu.core.events import Event, GangPlaced, TaskPlaced
from dgpu.core.execute import execute
from dgpu.core.rejections import JournalUnavailable, Rejection, StorageFull
from dgpu.core.state import ClusterState, pass_due
from dgpu.journal.journal import Room
from dgpu.wire.records import encode_group, join_groups

MAX_QUEUED = 10_000
MAX_QUEUED_BYTES = 64 << 20
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
    commands: tuple[tuple[object, Command | None, int], ...] = ()  # in the order of the queue


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
        self._queue: deque[tuple[object, Command | None, int]] = deque()
        self._queued_bytes = 0
        self._pass_due = False
        self._full_pass_due = False

    @property
    def queued(self) -> int:
        return len(self._queue)

    def has_room_for(self, command: Command) -> bool:
        """For requests that can be retried. Agents are bounded per session instead."""
        size_bytes = _size_bytes(command)
        return (
            len(self._queue) < MAX_QUEUED
            and size_bytes <= MAX_COMMAND_BYTES
            and self._queued_bytes + size_bytes <= MAX_QUEUED_BYTES
        )

    def offer(self, origin: object, command: Command | None) -> None:
        size_bytes = 0 if command is None else _size_bytes(command)
        self._queue.append((origin, command, size_bytes))
        self._queued_bytes += size_bytes

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
        return group

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
        self.in_flight = None
        self._state.become(state)
        again = [entry for entry in group.commands if not isinstance(entry[0], int)]
        self._queue.extendleft(reversed(again))
        self._queued_bytes += sum(size_bytes for _, _, size_bytes in again)
        self.ask_for_pass(full=True)
        return [origin for origin, _ in group.results if isinstance(origin, int)]

    def drop_asked(self) -> list[int]:
        """Removes undecided requests, whose clients can retry. Commands of agents and of the scheduler stay queued."""
        asked = [origin for origin, _, _ in self._queue if isinstance(origin, int)]
        if asked:
            self._queue = deque(entry for entry in self._queue if not isinstance(entry[0], int))
            self._queued_bytes = sum(size_bytes for _, _, size_bytes in self._queue)
        return asked

    def _take_queued(self, decided: _Decided) -> None:
        # Sizes are estimates; a record may be twice as large.
        sure_bytes = self.sure_bytes // 2
        budget_bytes = min(MAX_GROUP_BYTES, sure_bytes)
        while self._queue and len(decided.results) < MAX_GROUP_COMMANDS:
            origin, command, size_bytes = self._queue[0]
            refusal = self.refusal if isinstance(command, SubmitTasks) else None
            if refusal is None and size_bytes > budget_bytes and (decided.results or size_bytes > sure_bytes):
                break  # for the next group, or until the next segment is ready
            self._queue.popleft()
            self._queued_bytes -= size_bytes
            budget_bytes -= size_bytes
            if refusal is not None:
                decided.results.append((origin, refusal))
            else:
                decided.commands.append((origin, command, size_bytes))
                decided.take(origin, command)

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
        self.commands: list[tuple[object, Command | None, int]] = []
        self._state = state

    def take(self, origin: object, command: Command | None) -> None:
        self.results.append((origin, None if command is None else self._decide(command)))

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
