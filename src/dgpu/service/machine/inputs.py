"""Inputs of the scheduler machine, one value each. The adapters translate sockets and threads into them."""

from __future__ import annotations

import msgspec

from dgpu.core.commands import Command
from dgpu.core.events import Event
from dgpu.core.model.ids import NO_TASK, TaskId
from dgpu.core.model.settings import Settings
from dgpu.core.model.wall_span import WallSpan
from dgpu.core.rejections import JournalUnavailable, StorageFull
from dgpu.core.state import ClusterState
from dgpu.journal.journal import Room
from dgpu.wire.proto.agent_pb2 import FromAgent


class Input(msgspec.Struct, frozen=True, kw_only=True):
    pass


class Begin(Input, frozen=True, kw_only=True):
    """The journal was read: a new epoch starts under these settings."""

    settings: Settings
    nonce: str = ""
    cluster_id: str = ""  # for a journal that has none yet
    above_epoch: int = 0  # the highest epoch known outside the journal
    above_task: TaskId = NO_TASK
    lost_tail: bool = False  # an operator accepted the loss of the latest groups
    wall: WallSpan | None = None


class Execute(Input, frozen=True, kw_only=True):
    """A command whose caller waits for the answer."""

    request_id: int
    command: Command


class Read(Input, frozen=True, kw_only=True):
    """A read of the state at a committed point."""

    request_id: int


class DecideQueued(Input, frozen=True, kw_only=True):
    """The adapter has delivered its inputs: decide the next group, if none is in flight."""


class Committed(Input, frozen=True, kw_only=True):
    index: int


class Confirmed(Input, frozen=True, kw_only=True):
    """The engine showed that this scheduler leads, after Confirm was sent to it."""

    ticket: int


class Loaded(Input, frozen=True, kw_only=True):
    """The state as of a committed group, read from the files."""

    index: int
    state: ClusterState


class Followed(Input, frozen=True, kw_only=True):
    """A group that another scheduler committed, or this one in an earlier term."""

    index: int
    events: tuple[Event, ...]


class NotStored(Input, frozen=True, kw_only=True):
    """The group in flight is in no file, and the journal is intact: the group never happened. `state`: the one before
    it.
    """

    index: int
    state: ClusterState
    refusal: StorageFull | JournalUnavailable


class RoomChanged(Input, frozen=True, kw_only=True):
    room: Room
    trouble: str = ""  # why submits are refused although the disk may have room
    sure_bytes: int  # a record of this size fits for certain


class HistoryAdvanced(Input, frozen=True, kw_only=True):
    """The history contains everything up to this time: tasks that ended before it may leave the memory."""

    at: int


class WallClockSet(Input, frozen=True, kw_only=True):
    """The difference between the wall clock and the time of the journal has changed."""

    span: WallSpan


class TimePassed(Input, frozen=True, kw_only=True):
    """Comes at least once a second."""


class AgentSaid(Input, frozen=True, kw_only=True):
    connection_id: int
    message: FromAgent


class AgentLeft(Input, frozen=True, kw_only=True):
    connection_id: int
