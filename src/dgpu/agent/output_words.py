"""Inputs and outputs of the courier, the machine that sends output to the scheduler."""

from __future__ import annotations

import msgspec

from dgpu.agent.lifecycle_words import DropOutput, KeepOutput
from dgpu.core.model.ids import LeaseId, TaskId
from dgpu.wire.proto import agent_pb2 as pb

# -- inputs, beside KeepOutput (an attempt with output has ended) and DropOutput


class CallOpened(msgspec.Struct, frozen=True, kw_only=True):
    """A new output stream to the scheduler of this session."""

    session_id: str


class CallEnded(msgspec.Struct, frozen=True, kw_only=True):
    pass


class SchedulerSaid(msgspec.Struct, frozen=True, kw_only=True):
    message: pb.FromSchedulerOutput


class MessageTaken(msgspec.Struct, frozen=True, kw_only=True):
    """The stream has taken the last message: the next one may be sent."""


class FilesRead(msgspec.Struct, frozen=True, kw_only=True):
    """Answers a ReadFiles."""

    ticket: int
    is_there: bool  # the attempt has files on this node
    is_running: bool  # read before the files: they contain all earlier output
    end: int  # bytes that the attempt has written so far
    offset: int  # of data[0]; larger than requested if older bytes were deleted
    data: bytes = b""
    marks: bytes = b""  # agent.marks, of the data


class TimeCame(msgspec.Struct, frozen=True, kw_only=True):
    pass


CourierInput = (
    KeepOutput | DropOutput | CallOpened | CallEnded | SchedulerSaid | MessageTaken | FilesRead | TimeCame
)

# -- outputs


class SendMessage(msgspec.Struct, frozen=True, kw_only=True):
    """Answered by MessageTaken. At most one is in progress."""

    message: pb.FromAgentOutput


class ReadFiles(msgspec.Struct, frozen=True, kw_only=True):
    """Answered by FilesRead. At most one is in progress."""

    ticket: int
    lease_id: LeaseId
    task_id: TaskId  # 0: the lease alone decides
    attempt: int
    offset: int
    tail_bytes: int  # 0: read from offset; otherwise this many last bytes
    max_bytes: int


class OutputSettled(msgspec.Struct, frozen=True, kw_only=True):
    """The scheduler needs no more output of this attempt."""

    lease_id: LeaseId
    task_id: TaskId
    attempt: int
    is_whole: bool  # the scheduler has every byte: the node's copy is no longer needed
    refused: str = ""  # why the scheduler refuses it; empty: it is stored


class OutputReceived(msgspec.Struct, frozen=True, kw_only=True):
    """The scheduler has every byte, and waits for a second scheduler to have them too."""

    lease_id: LeaseId


CourierOutput = SendMessage | ReadFiles | OutputReceived | OutputSettled
