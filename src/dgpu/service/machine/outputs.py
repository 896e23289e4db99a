"""Outputs of the scheduler machine. The adapters carry them out in order and decide nothing."""

from __future__ import annotations

import msgspec

from dgpu.core.events import Event
from dgpu.core.model.ids import NodeId, TaskId
from dgpu.core.rejections import Rejection
from dgpu.wire.proto.agent_pb2 import FromScheduler


class CommittedGroup(msgspec.Struct, frozen=True, kw_only=True):
    """One durable journal record."""

    index: int
    events: tuple[Event, ...]


class Output(msgspec.Struct, frozen=True, kw_only=True):
    pass


class Append(Output, frozen=True, kw_only=True):
    """Make this durable, then send Committed. At most one is in progress."""

    index: int
    epoch: int
    payload: bytes
    last_task: int = 0  # the highest assigned task id, this group included


class Reply(Output, frozen=True, kw_only=True):
    request_id: int
    result: tuple[Event, ...] | Rejection


class ReplyFailed(Output, frozen=True, kw_only=True):
    """The decision hit a bug. The command had no effect."""

    request_id: int
    error: str


class ReadNow(Output, frozen=True, kw_only=True):
    """The state is at a committed point until the next input."""

    request_id: int
    is_stale: bool = False  # the engine has not confirmed it in time


class Publish(Output, frozen=True, kw_only=True):
    group: CommittedGroup


class Tell(Output, frozen=True, kw_only=True):
    connection_id: int
    message: FromScheduler


class HangUp(Output, frozen=True, kw_only=True):
    """End the connection after the messages already sent. `fault`: the agent broke the protocol."""

    connection_id: int
    reason: str
    fault: bool = False


class Contradicted(Output, frozen=True, kw_only=True):
    """A node obeyed an epoch of this cluster that is not in the journal: the journal was restored or lost its tail."""

    node_id: NodeId
    epoch: int
    task_id: TaskId  # the highest one on the node
    reason: str


class Confirm(Output, frozen=True, kw_only=True):
    """Ask the engine whether this scheduler still leads, then send Confirmed. At most one is in progress."""

    ticket: int


class LoadCommitted(Output, frozen=True, kw_only=True):
    """The group in flight takes long and reads wait: read the state before it from the files, then send Loaded."""

    index: int  # of the last committed group


class Remark(Output, frozen=True, kw_only=True):
    """A line for the operator's log."""

    event: str
    facts: dict[str, str | int]
