"""State of the intake for each stream, each upload and each reader."""

from __future__ import annotations

from dgpu.core.model.ids import LeaseId, TaskId
from dgpu.service.task_output.intake_words import LinkOpened
from dgpu.wire.proto import agent_pb2 as pb

WINDOW_BYTES = 1 << 20  # a stream's credit


class Upload:
    """The output of one ended attempt during its arrival."""

    __slots__ = (
        "attempt",
        "content",
        "failed",
        "held_back",
        "lease_id",
        "marks",
        "offset",
        "reached",
        "task_id",
    )

    def __init__(self, chunk: pb.OutputChunk) -> None:
        self.lease_id = LeaseId(chunk.lease_id)
        self.task_id = TaskId(chunk.task_id)
        self.attempt = chunk.attempt
        self.offset = 0
        self.content = bytearray()
        self.marks = bytearray()  # of the content
        self.reached = 0  # all bytes before this offset have arrived; -1: some are missing
        self.held_back: list[pb.OutputChunk] | None = []  # None: the holder is known
        self.failed = False  # a part could not be stored


class Link:
    """One output stream of a node."""

    __slots__ = ("credit_bytes", "id", "node_id", "owed_bytes", "session_id", "uploads")

    def __init__(self, opened: LinkOpened) -> None:
        self.id = opened.link_id
        self.node_id = opened.node_id
        self.session_id = opened.session_id
        self.credit_bytes = WINDOW_BYTES  # bytes that the agent may still send
        self.owed_bytes = 0  # arrived bytes whose credit was not returned yet
        self.uploads: dict[LeaseId, Upload] = {}  # oldest first

    @property
    def is_waiting(self) -> bool:
        return any(upload.held_back is not None for upload in self.uploads.values())


class Fetch:
    """A reader's request to a node."""

    __slots__ = ("lease_id", "link_id", "paused", "unread_bytes")

    def __init__(self, link_id: int, lease_id: LeaseId) -> None:
        self.link_id = link_id
        self.lease_id = lease_id
        self.unread_bytes = 0
        self.paused = False
