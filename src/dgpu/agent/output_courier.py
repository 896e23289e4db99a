"""Sends output of tasks to the scheduler on a separate stream that never blocks the main one. A machine without I/O.

The first and the last bytes of every ended attempt are sent until the scheduler has them on disk. With several
schedulers, the files stay until a second one has a copy: a scheduler that takes over gets everything again. Any part of
any attempt on this node is sent on request. The courier sends nothing without credit, reads one piece at a time and
sends it before it reads the next: its memory is one piece, however large the output is.
"""

from __future__ import annotations

from dgpu.agent.chunks import dropped_mark
from dgpu.agent.lifecycle_words import DropOutput, KeepOutput
from dgpu.agent.output_words import (
    CallEnded,
    CallOpened,
    CourierInput,
    CourierOutput,
    FilesRead,
    MessageTaken,
    OutputReceived,
    OutputSettled,
    ReadFiles,
    SchedulerSaid,
    SendMessage,
    TimeCame,
)
from dgpu.core.model.ids import LeaseId, NodeId, TaskId
from dgpu.wire.proto import agent_pb2 as pb

CHUNK_BYTES = 64 * 1024
LEGACY_TAIL_BYTES = 1024 * 1024  # for a scheduler that does not state how much it keeps
LOOK_MS = 100  # how often a followed attempt is checked while it is silent
RESEND_MS = 60_000  # without a Stored: the scheduler's disk may have been full
MAX_FETCHES = 1_000
NEVER_MS = 2**62
MIN_CREDIT_BYTES = 256  # with less credit the courier waits: a mark must fit
_FETCHES_PER_UPLOAD = 4  # readers come first, but a long download must not delay uploads


class _Upload:
    __slots__ = ("end", "is_received", "is_whole", "kept", "mark", "next_offset", "sent_at_ms", "sent_whole")

    def __init__(self, kept: KeepOutput) -> None:
        self.kept = kept
        # There was no room on the disk for a mark either.
        self.mark = dropped_mark(kept.lost_bytes) if kept.lost_bytes else b""
        self.begin_stream()

    def begin_stream(self) -> None:
        self.sent_whole: bool | None = None  # None: this stream has not carried the last chunk yet
        self.is_received = False  # the scheduler of this stream has it on disk
        self.begin_again()

    def begin_again(self) -> None:
        self.next_offset = 0
        self.end = -1  # unknown until the first read
        self.is_whole = True  # of this pass, so far: a gap may still come
        self.sent_at_ms: int | None = None  # None: not completely

    def on_last_sent(self, now_ms: int) -> None:
        """Stored does not say which pass it acknowledges, so one pass with a gap outweighs the others."""
        self.sent_at_ms = now_ms
        self.sent_whole = self.is_whole and self.sent_whole is not False


class _Fetch:
    __slots__ = ("ask", "look_at_ms", "offset", "tail_bytes", "until")

    def __init__(self, ask: pb.Fetch) -> None:
        self.ask = ask
        self.offset = ask.offset
        self.tail_bytes = ask.tail_bytes
        self.until = ask.offset + ask.length if ask.length else NEVER_MS
        self.look_at_ms = 0


class OutputCourier:
    """For one node. `kept_ms`: how long the node keeps output that the scheduler has only in part."""

    def __init__(self, *, node_id: NodeId, kept_ms: int = 0) -> None:
        self._node_id = node_id
        self._kept_ms = kept_ms
        self._uploads: dict[LeaseId, _Upload] = {}  # oldest first
        self._fetches: dict[int, _Fetch] = {}  # the next one to answer first
        self._credit = 0
        self._head_bytes = 0
        self._tail_bytes = LEGACY_TAIL_BYTES
        self._hello = ""
        self._is_open = False
        self._is_writing = False
        self._reading: _Fetch | _Upload | None = None
        self._ticket = 0
        self._fetches_in_a_row = 0

    def on_input(self, value: CourierInput, now_ms: int) -> list[CourierOutput]:
        outputs: list[CourierOutput] = []
        match value:
            case KeepOutput():
                self._uploads.setdefault(value.lease_id, _Upload(value))
            case DropOutput():
                self._uploads.pop(value.lease_id, None)
            case CallOpened():
                self._on_opened(value.session_id)
            case CallEnded():
                self._is_open = self._is_writing = False
                self._reading = None
            case SchedulerSaid():
                outputs += self._on_said(value.message)
            case MessageTaken():
                self._is_writing = False
            case FilesRead():
                outputs += self._on_read(value, now_ms)
            case TimeCame():
                pass
        return outputs + self._go_on(now_ms)

    def wake_at_ms(self, now_ms: int) -> int:
        """When to send TimeCame if nothing else happens."""
        is_idle = self._is_open and not self._is_writing and self._reading is None
        is_idle = is_idle and self._credit >= MIN_CREDIT_BYTES
        # A look may have become due since the last input: without a wake, its reader would wait for ever.
        times = [fetch.look_at_ms for fetch in self._fetches.values() if is_idle or fetch.look_at_ms > now_ms]
        times += [
            upload.sent_at_ms + RESEND_MS
            for upload in self._uploads.values()
            if upload.sent_at_ms is not None and not upload.is_received
        ]
        return min(times, default=NEVER_MS)

    # -- inputs

    def _on_opened(self, session_id: str) -> None:
        """A new stream: an incomplete upload of the old stream starts again."""
        self._is_open = True
        self._is_writing = False
        self._reading = None
        self._hello = session_id
        self._credit = 0
        self._head_bytes, self._tail_bytes = 0, LEGACY_TAIL_BYTES
        self._fetches.clear()
        for upload in self._uploads.values():
            upload.begin_stream()

    def _on_said(self, message: pb.FromSchedulerOutput) -> list[CourierOutput]:
        kind = message.WhichOneof("body")
        if kind == "credit":
            self._credit += message.credit.bytes
            if message.credit.tail_bytes:
                self._head_bytes = message.credit.head_bytes
                self._tail_bytes = message.credit.tail_bytes
        elif kind == "stored":
            return self._settle(LeaseId(message.stored.lease_id), "")
        elif kind == "received":
            return self._on_received(LeaseId(message.received.lease_id))
        elif kind == "unwanted":
            return self._settle(LeaseId(message.unwanted.lease_id), message.unwanted.reason or "unwanted")
        elif kind == "cancel_fetch":
            self._fetches.pop(message.cancel_fetch.request_id, None)
        elif kind == "fetch" and len(self._fetches) < MAX_FETCHES:
            self._fetches[message.fetch.request_id] = _Fetch(message.fetch)
        return []

    def _on_read(self, read: FilesRead, now_ms: int) -> list[CourierOutput]:
        reading, self._reading = self._reading, None
        if read.ticket != self._ticket or reading is None or not self._is_open:
            return []  # requested by an earlier stream
        if isinstance(reading, _Upload):
            return self._carry(reading, read, now_ms)
        if self._fetches.get(reading.ask.request_id) is not reading:
            return []  # cancelled meanwhile
        return self._answer(reading, read, now_ms)

    def _on_received(self, lease_id: LeaseId) -> list[CourierOutput]:
        upload = self._uploads.get(lease_id)
        if upload is None or upload.sent_whole is None:
            return []
        upload.is_received = True
        return [OutputReceived(lease_id=lease_id)] if upload.sent_whole else []

    def _settle(self, lease_id: LeaseId, refused: str) -> list[CourierOutput]:
        upload = self._uploads.pop(lease_id, None)
        if upload is None:
            return []
        return [
            OutputSettled(
                lease_id=lease_id,
                task_id=upload.kept.task_id,
                attempt=upload.kept.attempt,
                is_whole=upload.sent_whole is True and not refused,
                refused=refused,
            )
        ]

    # -- one piece at a time

    def _go_on(self, now_ms: int) -> list[CourierOutput]:
        if not self._is_open or self._is_writing or self._reading is not None:
            return []
        if self._hello:
            hello = pb.OutputHello(node_id=self._node_id, session_id=self._hello)
            self._hello = ""
            return [self._send(pb.FromAgentOutput(hello=hello))]
        if self._credit < MIN_CREDIT_BYTES:
            return []
        fetch = next((each for each in self._fetches.values() if each.look_at_ms <= now_ms), None)
        upload = self._next_upload(now_ms)
        if fetch is not None and (upload is None or self._fetches_in_a_row < _FETCHES_PER_UPLOAD):
            self._fetches_in_a_row += 1
            return [self._read_for_fetch(fetch)]
        self._fetches_in_a_row = 0
        return [self._read_for_upload(upload)] if upload is not None else []

    def _next_upload(self, now_ms: int) -> _Upload | None:
        for upload in self._uploads.values():
            if upload.is_received:
                continue
            if upload.sent_at_ms is not None and now_ms - upload.sent_at_ms >= RESEND_MS:
                upload.begin_again()
            if upload.sent_at_ms is None:
                return upload
        return None

    def _read_for_fetch(self, fetch: _Fetch) -> ReadFiles:
        ask = fetch.ask
        self._fetches[ask.request_id] = self._fetches.pop(ask.request_id)  # the other requests go first now
        self._reading = fetch
        self._ticket += 1
        return ReadFiles(
            ticket=self._ticket,
            lease_id=LeaseId(ask.lease_id),
            task_id=TaskId(ask.task_id),
            attempt=ask.attempt,
            offset=fetch.offset,
            tail_bytes=fetch.tail_bytes,
            max_bytes=max(0, min(CHUNK_BYTES, self._credit, fetch.until - fetch.offset)),
        )

    def _read_for_upload(self, upload: _Upload) -> ReadFiles:
        self._reading = upload
        self._ticket += 1
        left = CHUNK_BYTES
        if 0 <= upload.next_offset < self._head_bytes:
            left = self._head_bytes - upload.next_offset
        is_first = upload.end < 0 and not self._head_bytes
        return ReadFiles(
            ticket=self._ticket,
            lease_id=upload.kept.lease_id,
            task_id=upload.kept.task_id,
            attempt=upload.kept.attempt,
            offset=upload.next_offset,
            tail_bytes=self._tail_bytes if is_first else 0,
            max_bytes=min(CHUNK_BYTES, left, self._credit),
        )

    def _answer(self, fetch: _Fetch, read: FilesRead, now_ms: int) -> list[CourierOutput]:
        ask = fetch.ask
        data = read.data[: max(0, fetch.until - read.offset)]
        chunk = pb.OutputChunk(
            lease_id=ask.lease_id,
            task_id=ask.task_id,
            attempt=ask.attempt,
            request_id=ask.request_id,
            offset=read.offset,
            data=data,
            marks=read.marks,
        )
        if data:
            fetch.offset, fetch.tail_bytes = read.offset + len(data), 0
            self._credit -= len(data)
            return [self._send(pb.FromAgentOutput(chunk=chunk))]
        if ask.follow and read.is_running:
            fetch.look_at_ms = now_ms + LOOK_MS
            fetch.offset, fetch.tail_bytes = max(fetch.offset, read.offset), 0
            return []
        upload = self._uploads.get(LeaseId(ask.lease_id))
        mark = upload.mark if upload is not None and fetch.until > read.end else b""
        self._credit -= len(mark)
        chunk.data = mark
        chunk.last = True
        if not read.is_running and not read.is_there and upload is None:
            chunk.error = "this node has no output of that attempt"
        del self._fetches[ask.request_id]
        return [self._send(pb.FromAgentOutput(chunk=chunk))]

    def _carry(self, upload: _Upload, read: FilesRead, now_ms: int) -> list[CourierOutput]:
        if self._uploads.get(upload.kept.lease_id) is not upload:
            return []  # settled meanwhile
        upload.end = max(read.end, upload.kept.output_bytes)  # files may have been deleted for space
        upload.is_whole = upload.is_whole and read.end == upload.end
        offset, data = read.offset, read.data
        if offset >= read.end or not data:
            # The end of the files; a mark that had no room in them follows.
            offset, data = upload.end, upload.mark
            upload.next_offset = upload.end + len(data)
            is_last = True
        else:
            upload.is_whole = upload.is_whole and offset == upload.next_offset
            upload.next_offset = self._behind(upload, offset + len(data))
            is_last = upload.next_offset >= upload.end and not upload.mark
        self._credit -= len(data)
        chunk = pb.OutputChunk(
            lease_id=upload.kept.lease_id,
            task_id=upload.kept.task_id,
            attempt=upload.kept.attempt,
            offset=offset,
            data=data,
            last=is_last,
            marks=read.marks,
        )
        if is_last:
            upload.on_last_sent(now_ms)
            chunk.end = upload.end + len(upload.mark)
            chunk.kept_ms = 0 if upload.is_whole else self._kept_ms
        return [self._send(pb.FromAgentOutput(chunk=chunk))]

    def _behind(self, upload: _Upload, offset: int) -> int:
        """The next offset to send: after the head, the tail."""
        tail = upload.end - self._tail_bytes
        if self._head_bytes <= offset < tail:
            upload.is_whole = False
            return tail
        return offset

    def _send(self, message: pb.FromAgentOutput) -> SendMessage:
        self._is_writing = True
        return SendMessage(message=message)
