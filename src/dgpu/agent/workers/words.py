"""Inputs and outputs of the machine for workers, beside those that it shares with the lifecycle."""

from __future__ import annotations

import msgspec

from dgpu.core.model.ids import LeaseId, TaskId
from dgpu.core.model.task import Outcome
from dgpu.worker.frames import ToAgent, ToWorker

# -- inputs


class WorkerSaid(msgspec.Struct, frozen=True, kw_only=True):
    """Frames of a worker, in order. The first one of a connection is its hello."""

    lease_id: LeaseId
    frames: list[ToAgent]


class WorkerHungUp(msgspec.Struct, frozen=True, kw_only=True):
    """The connection has ended. Another one is tried until HangUpWorker."""

    lease_id: LeaseId
    broken: str = ""  # how the worker broke the protocol; empty: it did not


class WorkerUnread(msgspec.Struct, frozen=True, kw_only=True):
    """The host does not read its frames, because the disk is behind with the output; or reads them again."""

    lease_id: LeaseId
    is_unread: bool


class ArgumentsStored(msgspec.Struct, frozen=True, kw_only=True):
    """Answers FetchArguments."""

    lease_id: LeaseId
    worker_lease_id: LeaseId
    name: str = ""  # of the file beside the worker's socket
    error: str = ""
    is_of_node: bool = False  # the error may not come again on another node


class ResultStored(msgspec.Struct, frozen=True, kw_only=True):
    """Answers PutResult."""

    lease_id: LeaseId
    error: str = ""
    is_lost: bool = False  # the worker has ended, and its files with it: another one may have the same result


class CallOutputClosed(msgspec.Struct, frozen=True, kw_only=True):
    """Answers CloseCallOutput: all of it is in files."""

    lease_id: LeaseId
    output_bytes: int
    lost_bytes: int = 0  # the disk had no room for them


WorkerInput = WorkerSaid | WorkerHungUp | WorkerUnread | ArgumentsStored | ResultStored | CallOutputClosed

# -- outputs


class ConnectWorker(msgspec.Struct, frozen=True, kw_only=True):
    """Connect to its socket, again and again, until HangUpWorker."""

    lease_id: LeaseId


class HangUpWorker(msgspec.Struct, frozen=True, kw_only=True):
    lease_id: LeaseId


class TellWorker(msgspec.Struct, frozen=True, kw_only=True):
    lease_id: LeaseId
    frames: list[ToWorker]


class FetchArguments(msgspec.Struct, frozen=True, kw_only=True):
    """Fetch the content from the scheduler into a file beside the worker's socket."""

    lease_id: LeaseId
    worker_lease_id: LeaseId
    sha256: str


class DeleteArguments(msgspec.Struct, frozen=True, kw_only=True):
    """Of a call whose worker did not read them. A worker may live for days."""

    worker_lease_id: LeaseId
    name: str


class PutResult(msgspec.Struct, frozen=True, kw_only=True):
    """Send a file beside the worker's socket to the scheduler, then delete it."""

    lease_id: LeaseId
    worker_lease_id: LeaseId
    name: str
    sha256: str
    size: int


class WriteCallOutput(msgspec.Struct, frozen=True, kw_only=True):
    lease_id: LeaseId
    worker_lease_id: LeaseId
    stream: int  # agent.marks
    data: bytes


class CloseCallOutput(msgspec.Struct, frozen=True, kw_only=True):
    lease_id: LeaseId


class DeleteCallOutput(msgspec.Struct, frozen=True, kw_only=True):
    """The scheduler needs no more of it, or never will."""

    lease_ids: tuple[LeaseId, ...]


class EndWorker(msgspec.Struct, frozen=True, kw_only=True):
    """An input of the lifecycle: the node itself ends the run of a worker."""

    lease_id: LeaseId
    grace_ms: int
    cause: Outcome
    error: str


class CallRun(msgspec.Struct, frozen=True, kw_only=True):
    """Which output belongs to a call."""

    task_id: TaskId
    attempt: int
    is_running: bool


WorkerOutput = (
    ConnectWorker
    | HangUpWorker
    | TellWorker
    | FetchArguments
    | DeleteArguments
    | PutResult
    | WriteCallOutput
    | CloseCallOutput
    | DeleteCallOutput
    | EndWorker
)
