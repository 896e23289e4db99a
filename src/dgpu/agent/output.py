"""What tasks have written, on its way to the scheduler, beside the main stream and never in its way.

The last bytes of every ended attempt are brought over and kept here until the scheduler has them on disk. A running
attempt is read on request. Nothing is sent without credit. The stream's writer pulls one message at a time.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path

from dgpu.agent.chunks import dropped_mark, extent, read_at
from dgpu.agent.lifecycle_words import KeepOutput
from dgpu.core.ids import LeaseId, NodeId
from dgpu.wire.proto import agent_pb2 as pb

CHUNK_BYTES = 64 * 1024
KEPT_BYTES = 1024 * 1024  # of each attempt, its last
LOOK_MS = 100  # how often a followed attempt is looked at while it is silent
RESEND_MS = 60_000  # without a Stored: the scheduler's disk may have been full
MOST_FETCHES = 1_000
_NEVER_MS = 2**62
_DROPPED = b"[dgpu: output dropped, too much of it waited for the scheduler]\n"


class _Upload:
    __slots__ = ("end", "kept", "mark", "next_offset", "sent_at_ms", "size")

    def __init__(self, kept: KeepOutput, size: int) -> None:
        self.kept = kept
        self.mark = (
            dropped_mark(kept.lost_bytes) if kept.lost_bytes else b""
        )  # there was no room for it, either
        self.size = size
        self.next_offset = -1  # nothing sent on this stream yet
        self.end = 0
        self.sent_at_ms: int | None = None  # None: not wholly


class _Fetch:
    __slots__ = ("follow", "lease_id", "look_at_ms", "offset", "request_id")

    def __init__(self, fetch: pb.Fetch, offset: int) -> None:
        self.request_id = fetch.request_id
        self.lease_id = LeaseId(fetch.lease_id)
        self.follow = fetch.follow
        self.offset = offset
        self.look_at_ms = 0


class OutputSender:
    """Of one node. `on_settled` hears of attempts whose output is needed no more."""

    def __init__(
        self,
        *,
        node_id: NodeId,
        directory: Path,
        limit_bytes: int,
        is_running: Callable[[LeaseId], bool],
        on_settled: Callable[[LeaseId], None],
    ) -> None:
        self._node_id = node_id
        self._directory = directory
        self._limit_bytes = limit_bytes
        self._is_running = is_running
        self._on_settled = on_settled
        self._uploads: dict[LeaseId, _Upload] = {}  # oldest first
        self._total_bytes = 0
        self._fetches: dict[int, _Fetch] = {}
        self._hello = ""
        self._credit = 0
        self._open = False

    def keep(self, kept: KeepOutput) -> None:
        """An attempt with output has ended."""
        if kept.lease_id in self._uploads:
            return
        first, end = extent(self._of(kept.lease_id))
        self._uploads[kept.lease_id] = _Upload(kept, end - first)
        self._total_bytes += end - first
        self._make_room()

    def opened(self, session_id: str) -> None:
        """A new stream: whatever the old one carried half-way is sent from its start."""
        self._open = True
        self._hello = session_id
        self._credit = 0
        self._fetches.clear()
        for upload in self._uploads.values():
            upload.next_offset = -1
            upload.sent_at_ms = None

    def closed(self) -> None:
        self._open = False

    def on_message(self, message: pb.FromSchedulerOutput) -> None:
        kind = message.WhichOneof("body")
        if kind == "credit":
            self._credit += message.credit.bytes
        elif kind == "stored":
            self._settle(LeaseId(message.stored.lease_id))
        elif kind == "cancel_fetch":
            self._fetches.pop(message.cancel_fetch.request_id, None)
        elif kind == "fetch" and len(self._fetches) < MOST_FETCHES:
            fetch = message.fetch
            offset = fetch.offset
            if fetch.tail_bytes:
                first, end = extent(self._of(LeaseId(fetch.lease_id)))
                offset = max(first, end - fetch.tail_bytes)
            self._fetches[fetch.request_id] = _Fetch(fetch, offset)

    def next_message(self, now_ms: int) -> pb.FromAgentOutput | None:
        """What may be sent now: people who wait first, then what is to be kept."""
        if not self._open:
            return None
        if self._hello:
            hello = pb.OutputHello(node_id=self._node_id, session_id=self._hello)
            self._hello = ""
            return pb.FromAgentOutput(hello=hello)
        for fetch in list(self._fetches.values()):
            if fetch.look_at_ms <= now_ms:
                chunk = self._answer(fetch, now_ms)
                if chunk is not None:
                    return pb.FromAgentOutput(chunk=chunk)
        for upload in self._uploads.values():
            if upload.sent_at_ms is not None and now_ms - upload.sent_at_ms >= RESEND_MS:
                upload.next_offset = -1
                upload.sent_at_ms = None
            if upload.sent_at_ms is None:
                chunk = self._carry(upload, now_ms)
                return pb.FromAgentOutput(chunk=chunk) if chunk is not None else None
        return None

    def wake_at_ms(self, now_ms: int) -> int:
        """When to ask again although nothing arrived."""
        times = [fetch.look_at_ms for fetch in self._fetches.values() if fetch.look_at_ms > now_ms]
        times += [
            upload.sent_at_ms + RESEND_MS
            for upload in self._uploads.values()
            if upload.sent_at_ms is not None
        ]
        return min(times, default=_NEVER_MS)

    # -- leaves

    def _answer(self, fetch: _Fetch, now_ms: int) -> pb.OutputChunk | None:
        if not self._credit:
            return None
        running = self._is_running(fetch.lease_id)  # asked first: what it wrote until then is in the files
        directory = self._of(fetch.lease_id)
        offset, found = read_at(directory, fetch.offset, min(CHUNK_BYTES, self._credit))
        chunk = pb.OutputChunk(
            lease_id=fetch.lease_id, request_id=fetch.request_id, offset=offset, data=found
        )
        if found:
            fetch.offset = offset + len(found)
            self._credit -= len(found)
        elif fetch.follow and running:
            fetch.look_at_ms = now_ms + LOOK_MS
            # Rotate: the others come first now.
            self._fetches[fetch.request_id] = self._fetches.pop(fetch.request_id)
            return None
        else:
            chunk.last = True
            upload = self._uploads.get(fetch.lease_id)
            if upload is not None and self._credit >= len(upload.mark):
                chunk.data = upload.mark
                self._credit -= len(upload.mark)
            if not running and not directory.exists() and fetch.lease_id not in self._uploads:
                chunk.error = "this node has no output of that attempt"
            del self._fetches[fetch.request_id]
            return chunk
        self._fetches[fetch.request_id] = self._fetches.pop(fetch.request_id)
        return chunk

    def _carry(self, upload: _Upload, now_ms: int) -> pb.OutputChunk | None:
        directory = self._of(upload.kept.lease_id)
        if upload.next_offset < 0:
            first, upload.end = extent(directory)
            upload.next_offset = max(first, upload.end - KEPT_BYTES)
        left = upload.end - upload.next_offset
        if self._credit < (1 if left > 0 else len(upload.mark)):
            return None
        if left > 0:
            offset, found = read_at(directory, upload.next_offset, min(CHUNK_BYTES, left, self._credit))
            upload.next_offset = offset + len(found) if found else upload.end
        else:
            offset, found = upload.end, upload.mark
        self._credit -= len(found)
        is_last = upload.next_offset >= upload.end and (left <= 0 or not upload.mark)
        if is_last:
            upload.sent_at_ms = now_ms
        return pb.OutputChunk(
            lease_id=upload.kept.lease_id,
            task_id=upload.kept.task_id,
            attempt=upload.kept.attempt,
            offset=offset,
            data=found,
            last=is_last,
        )

    def _settle(self, lease_id: LeaseId) -> None:
        upload = self._uploads.pop(lease_id, None)
        if upload is not None:
            self._total_bytes -= upload.size
            self._on_settled(lease_id)

    def _make_room(self) -> None:
        """The oldest go first; a line in their place says so."""
        for lease_id, upload in self._uploads.items():
            if self._total_bytes <= self._limit_bytes:
                return
            if upload.size <= len(_DROPPED):
                continue
            directory = self._of(lease_id)
            _, end = extent(directory)
            with contextlib.suppress(OSError):
                shutil.rmtree(directory)
                directory.mkdir(mode=0o700)
                (directory / f"{end:016d}").write_bytes(_DROPPED)
                self._total_bytes += len(_DROPPED) - upload.size
                upload.size = len(_DROPPED)
                upload.next_offset = -1
                upload.sent_at_ms = None

    def _of(self, lease_id: LeaseId) -> Path:
        return self._directory / f"{lease_id:d}"
