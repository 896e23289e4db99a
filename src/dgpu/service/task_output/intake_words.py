"""Inputs and outputs of the intake, the machine that receives output of tasks from agents."""

from __future__ import annotations

import msgspec

from dgpu.core.model.ids import LeaseId, NodeId, TaskId
from dgpu.service.machine.outputs import CommittedGroup
from dgpu.service.task_output.pack import OutputPart
from dgpu.wire.proto import agent_pb2 as pb


class Holder(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The only node whose output counts for a lease."""

    node_id: NodeId
    task_id: TaskId
    attempt: int  # wire.ranks.run_number


# -- inputs


class LinkOpened(msgspec.Struct, frozen=True, kw_only=True):
    """An agent opened an output stream."""

    link_id: int
    node_id: NodeId
    session_id: str


class LinkEnded(msgspec.Struct, frozen=True, kw_only=True):
    link_id: int


class ChunkArrived(msgspec.Struct, frozen=True, kw_only=True):
    link_id: int
    chunk: pb.OutputChunk


class HolderFound(msgspec.Struct, frozen=True, kw_only=True):
    """Answers a FindHolder. `is_sure` False: the history is behind or cannot be read, so the holder is unknown."""

    lease_id: LeaseId
    holder: Holder | None
    is_sure: bool = True


class PartsStored(msgspec.Struct, frozen=True, kw_only=True):
    """Answers a StoreParts: durable, or not stored at all."""

    ok: bool


class FetchWanted(msgspec.Struct, frozen=True, kw_only=True):
    """A reader wants bytes that are on a node."""

    request_id: int
    node_id: NodeId
    lease_id: LeaseId
    task_id: TaskId
    attempt: int
    offset: int
    tail_bytes: int = 0
    length: int = 0
    follow: bool = False


class FetchTaken(msgspec.Struct, frozen=True, kw_only=True):
    """The reader has taken all delivered bytes."""

    request_id: int


class FetchLeft(msgspec.Struct, frozen=True, kw_only=True):
    """The reader needs no more."""

    request_id: int


IntakeInput = (
    LinkOpened
    | LinkEnded
    | ChunkArrived
    | HolderFound
    | PartsStored
    | FetchWanted
    | FetchTaken
    | FetchLeft
    | CommittedGroup
)

# -- outputs


class TellAgent(msgspec.Struct, frozen=True, kw_only=True):
    link_id: int
    message: pb.FromSchedulerOutput


class EndLink(msgspec.Struct, frozen=True, kw_only=True):
    link_id: int
    reason: str
    fault: bool = False


class FindHolder(msgspec.Struct, frozen=True, kw_only=True):
    """Answered by HolderFound, from the state or else from the history."""

    lease_id: LeaseId


class StoreParts(msgspec.Struct, frozen=True, kw_only=True):
    """Answered by PartsStored. At most one is in progress."""

    parts: tuple[OutputPart, ...]


class RunDurable(msgspec.Struct, frozen=True, kw_only=True):
    """All parts of an ended run that this scheduler stores are on disk. Its node waits for an answer."""

    link_id: int
    lease_id: LeaseId
    run: tuple[TaskId, int]


class Deliver(msgspec.Struct, frozen=True, kw_only=True):
    """For a reader. `paused`: no more bytes come until the reader asks again from the place where it stopped."""

    request_id: int
    offset: int = 0
    data: bytes = b""
    ended: bool = False
    paused: bool = False
    error: str = ""


class Complain(msgspec.Struct, frozen=True, kw_only=True):
    """A line for the operator's log."""

    event: str
    facts: dict[str, str | int]


IntakeOutput = TellAgent | EndLink | FindHolder | StoreParts | RunDurable | Deliver | Complain
