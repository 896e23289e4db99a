"""Receives output of tasks from agents. A machine without I/O.

A chunk counts only if it comes from the registered session of a node, for the task and attempt of a lease that this
node held. Other chunks are refused, counted and logged, and never stored.

Output of ended attempts becomes parts for the log store. RunDurable follows when the last part is on disk. A part that
cannot be stored ends its upload, and the agent sends the whole output again. Credit is returned when bytes arrive,
not when a reader takes them: the fetch of a slow reader is cancelled and resumed later where it stopped.
"""

from __future__ import annotations

from collections.abc import Callable

from dgpu.core.events import GangPlaced, TaskPlaced
from dgpu.core.model.ids import LeaseId, NodeId
from dgpu.service.machine.fences import is_current
from dgpu.service.machine.outputs import CommittedGroup
from dgpu.service.task_output.intake_words import (
    ChunkArrived,
    Complain,
    Deliver,
    EndLink,
    FetchLeft,
    FetchTaken,
    FetchWanted,
    FindHolder,
    Holder,
    HolderFound,
    IntakeInput,
    IntakeOutput,
    LinkEnded,
    LinkOpened,
    PartsStored,
    RunDurable,
    StoreParts,
    TellAgent,
)
from dgpu.service.task_output.links import WINDOW_BYTES, Fetch, Link, Upload
from dgpu.service.task_output.marked import MAX_MARKS_BYTES, MarkedBytes
from dgpu.service.task_output.pack import OutputPart
from dgpu.service.task_output.recent import Recent
from dgpu.wire.proto import agent_pb2 as pb
from dgpu.wire.ranks import run_number

DEFAULT_HEAD_BYTES = 1 << 20
DEFAULT_TAIL_BYTES = 16 << 20
MAX_CHUNK_BYTES = 256 << 10
PART_BYTES = 512 << 10
MAX_UNREAD_BYTES = 256 << 10  # of one reader, before its fetch pauses
MAX_UNSTORED_BYTES = 64 << 20  # of all streams: parts that wait for the disk
MAX_UPLOADS = 4  # of one stream at a time; an agent sends them one after the other
MAX_HOLDERS = 100_000
MAX_OFFSET = 1 << 60
_CREDIT_STEP_BYTES = 256 << 10
_COMPLAIN_EVERY_MS = 10_000


class OutputIntake:
    """`session_of` returns the session in which a node is registered now; empty: not registered."""

    def __init__(
        self,
        *,
        session_of: Callable[[NodeId], str],
        head_bytes: int = DEFAULT_HEAD_BYTES,
        tail_bytes: int = DEFAULT_TAIL_BYTES,
    ) -> None:
        self._session_of = session_of
        self._head_bytes = head_bytes
        self._tail_bytes = tail_bytes
        self._holders = Recent[LeaseId, Holder](MAX_HOLDERS)
        self._links: dict[int, Link] = {}
        self._by_node: dict[NodeId, int] = {}
        self._fetches: dict[int, Fetch] = {}
        self._unstored: list[tuple[Link, Upload, OutputPart]] = []
        self._storing: list[tuple[Link, Upload, OutputPart]] = []
        self._unstored_bytes = 0
        self._complained_ms = -_COMPLAIN_EVERY_MS
        self._unlogged = 0
        self.refused = 0  # hellos and chunks
        self.store_failed = False  # at the last attempt

    def on_input(self, value: IntakeInput, now_ms: int) -> list[IntakeOutput]:
        match value:
            case ChunkArrived():
                return self._on_chunk(value, now_ms)
            case CommittedGroup():
                return self._on_group(value)
            case LinkOpened():
                return self._on_opened(value, now_ms)
            case LinkEnded():
                return self._drop(value.link_id)
            case HolderFound():
                return self._on_holder(value, now_ms)
            case PartsStored():
                return self._on_stored(value)
            case FetchWanted():
                return self._on_wanted(value)
            case FetchTaken():
                if value.request_id in self._fetches:
                    self._fetches[value.request_id].unread_bytes = 0
                return []
            case FetchLeft():
                return self._on_left(value.request_id)

    def is_attached(self, node_id: NodeId) -> bool:
        link_id = self._by_node.get(node_id)
        return link_id is not None and is_current(self._links[link_id].session_id, self._session_of(node_id))

    @property
    def is_storing(self) -> bool:
        return bool(self._storing or self._unstored)

    def is_receiving(self, node_id: NodeId) -> bool:
        """Whether an upload of this node is in progress."""
        link_id = self._by_node.get(node_id)
        return link_id is not None and bool(self._links[link_id].uploads)

    # -- links

    def _on_opened(self, opened: LinkOpened, now_ms: int) -> list[IntakeOutput]:
        if not is_current(opened.session_id, self._session_of(opened.node_id)):
            reason = (
                f"no session {opened.session_id[:64]!r} of node {opened.node_id[:64]!r} is registered here"
            )
            self.refused += 1
            facts: dict[str, str | int] = {"node": opened.node_id[:64], "why": "unknown session"}
            return [*self._complain(facts, now_ms), EndLink(link_id=opened.link_id, reason=reason)]
        outputs: list[IntakeOutput] = []
        older = self._by_node.get(opened.node_id)
        if older is not None:
            outputs += self._end(older, "replaced by a newer stream")
        link = self._links[opened.link_id] = Link(opened)
        self._by_node[opened.node_id] = opened.link_id
        credit = pb.Credit(bytes=WINDOW_BYTES, head_bytes=self._head_bytes, tail_bytes=self._tail_bytes)
        outputs.append(TellAgent(link_id=link.id, message=pb.FromSchedulerOutput(credit=credit)))
        return outputs

    def _end(self, link_id: int, reason: str, *, fault: bool = False) -> list[IntakeOutput]:
        return [*self._drop(link_id), EndLink(link_id=link_id, reason=reason, fault=fault)]

    def _drop(self, link_id: int) -> list[IntakeOutput]:
        link = self._links.pop(link_id, None)
        if link is None:
            return []
        if self._by_node.get(link.node_id) == link_id:
            del self._by_node[link.node_id]
        broken = [request for request, fetch in self._fetches.items() if fetch.link_id == link_id]
        for request_id in broken:
            del self._fetches[request_id]
        return [Deliver(request_id=request_id, paused=True) for request_id in broken]

    def _give_credit(self, link: Link) -> list[IntakeOutput]:
        if (
            link.owed_bytes < _CREDIT_STEP_BYTES
            or self._unstored_bytes >= MAX_UNSTORED_BYTES
            or link.is_waiting
        ):
            return []
        credit = pb.Credit(bytes=link.owed_bytes)
        link.credit_bytes += link.owed_bytes
        link.owed_bytes = 0
        return [TellAgent(link_id=link.id, message=pb.FromSchedulerOutput(credit=credit))]

    # -- chunks

    def _on_chunk(self, arrived: ChunkArrived, now_ms: int) -> list[IntakeOutput]:
        link = self._links.get(arrived.link_id)
        if link is None:
            return []
        if not is_current(link.session_id, self._session_of(link.node_id)):
            return self._end(link.id, "the session of this stream has ended")
        chunk = arrived.chunk
        count = len(chunk.data)
        link.credit_bytes -= count
        link.owed_bytes += count
        if count > MAX_CHUNK_BYTES or link.credit_bytes < 0:
            return self._end(link.id, "more output than the credit allows", fault=True)
        if max(chunk.offset, chunk.end) > MAX_OFFSET:
            return self._end(link.id, f"offset {chunk.offset} or end {chunk.end} is too large", fault=True)
        outputs = (
            self._on_fetched(link, chunk, now_ms) if chunk.request_id else self._on_kept(link, chunk, now_ms)
        )
        return outputs + self._give_credit(link)

    def _on_fetched(self, link: Link, chunk: pb.OutputChunk, now_ms: int) -> list[IntakeOutput]:
        fetch = self._fetches.get(chunk.request_id)
        if fetch is None:
            return []  # the reader has left
        if fetch.link_id != link.id or fetch.lease_id != chunk.lease_id:
            return self._refuse(link, chunk, "the answer to a fetch of another node or lease", now_ms)
        fetch.unread_bytes += len(chunk.data)
        ended = chunk.last or bool(chunk.error)
        paused = fetch.unread_bytes > MAX_UNREAD_BYTES and not ended
        outputs: list[IntakeOutput] = [
            Deliver(
                request_id=chunk.request_id,
                offset=chunk.offset,
                data=MarkedBytes(chunk.data, chunk.offset, chunk.marks[:MAX_MARKS_BYTES]),
                ended=ended,
                paused=paused,
                error=chunk.error,
            )
        ]
        if ended or paused:
            del self._fetches[chunk.request_id]
        if paused:
            outputs.append(_cancel(link.id, chunk.request_id))
        return outputs

    def _on_kept(self, link: Link, chunk: pb.OutputChunk, now_ms: int) -> list[IntakeOutput]:
        lease_id = LeaseId(chunk.lease_id)
        upload = link.uploads.get(lease_id)
        if upload is not None and (upload.task_id, upload.attempt) != (chunk.task_id, chunk.attempt):
            return self._refuse(link, chunk, "a different task or attempt than before", now_ms)
        if upload is not None:
            if upload.held_back is None:
                return self._accept(link, upload, chunk, now_ms)
            upload.held_back.append(chunk)
            return []
        upload = Upload(chunk)
        holder = self._holders.get(lease_id)
        if holder is not None:
            if why := _why_foreign(holder, link, upload):
                return self._refuse(link, chunk, why, now_ms)
            upload.held_back = None
        while len(link.uploads) >= MAX_UPLOADS:
            del link.uploads[next(iter(link.uploads))]  # never finished: the agent starts it again
        link.uploads[lease_id] = upload
        if holder is not None:
            return self._accept(link, upload, chunk, now_ms)
        upload.held_back = [chunk]
        return [FindHolder(lease_id=lease_id)]

    def _on_holder(self, found: HolderFound, now_ms: int) -> list[IntakeOutput]:
        outputs: list[IntakeOutput] = []
        for link in tuple(self._links.values()):
            upload = link.uploads.get(found.lease_id)
            if upload is None or upload.held_back is None:
                continue
            chunks, upload.held_back = upload.held_back, None
            why = "no such lease" if found.holder is None else _why_foreign(found.holder, link, upload)
            if why:
                del link.uploads[found.lease_id]
                # Uncertain: no answer. The agent sends it again in a minute.
                outputs += self._refuse(link, chunks[0], why, now_ms) if found.is_sure else []
            else:
                for chunk in chunks:
                    outputs += self._accept(link, upload, chunk, now_ms)
            outputs += self._give_credit(link)
        return outputs

    def _refuse(self, link: Link, chunk: pb.OutputChunk, why: str, now_ms: int) -> list[IntakeOutput]:
        self.refused += 1
        outputs: list[IntakeOutput] = []
        if not chunk.request_id:
            link.uploads.pop(LeaseId(chunk.lease_id), None)
            unwanted = pb.Unwanted(lease_id=chunk.lease_id, reason=why)
            outputs.append(TellAgent(link_id=link.id, message=pb.FromSchedulerOutput(unwanted=unwanted)))
        facts: dict[str, str | int] = {
            "node": link.node_id,
            "lease": chunk.lease_id,
            "task": chunk.task_id,
            "attempt": chunk.attempt,
            "why": why,
        }
        return outputs + self._complain(facts, now_ms)

    def _complain(self, facts: dict[str, str | int], now_ms: int) -> list[IntakeOutput]:
        """One line per ten seconds, with the number of omitted ones."""
        if now_ms - self._complained_ms < _COMPLAIN_EVERY_MS:
            self._unlogged += 1
            return []
        self._complained_ms = now_ms
        unlogged, self._unlogged = self._unlogged, 0
        return [Complain(event="output_refused", facts={**facts, "unlogged": unlogged})]

    # -- parts

    def _accept(self, link: Link, upload: Upload, chunk: pb.OutputChunk, now_ms: int) -> list[IntakeOutput]:
        if chunk.last:
            link.uploads.pop(upload.lease_id, None)
        if 0 <= upload.reached >= chunk.offset:
            upload.reached = max(upload.reached, chunk.offset + len(chunk.data))
        else:
            upload.reached = -1
        if chunk.last and chunk.end and not chunk.kept_ms and upload.reached != chunk.end:
            # The node will not keep this output, because it sent all of it. But the beginning is missing here: the node
            # must send it again.
            upload.failed = True
        if upload.failed:
            return []
        if upload.content and upload.offset + len(upload.content) != chunk.offset:
            self._cut_part(link, upload)  # the agent went from the head to the tail, or started again
        if not upload.content:
            upload.offset = chunk.offset
        upload.content += chunk.data
        upload.marks += chunk.marks[: max(0, MAX_MARKS_BYTES - len(upload.marks))]
        if chunk.last:
            end = max(chunk.end, chunk.offset + len(chunk.data))
            kept_until_ms = now_ms + chunk.kept_ms if chunk.kept_ms else 0
            self._cut_part(link, upload, end=end, kept_until_ms=kept_until_ms)
        elif len(upload.content) >= PART_BYTES:
            self._cut_part(link, upload)
        return self._store()

    def _cut_part(self, link: Link, upload: Upload, *, end: int = -1, kept_until_ms: int = 0) -> None:
        part = OutputPart(
            task_id=upload.task_id,
            attempt=upload.attempt,
            lease_id=upload.lease_id,
            node_id=link.node_id,
            offset=upload.offset,
            content=bytes(upload.content),
            end=end,
            kept_until_ms=kept_until_ms,
            marks=bytes(upload.marks),
        )
        upload.content, upload.marks = bytearray(), bytearray()
        self._unstored.append((link, upload, part))
        self._unstored_bytes += len(part.content)

    def _store(self) -> list[IntakeOutput]:
        """The next batch contains everything that arrived while the last batch was synced."""
        if self._storing or not self._unstored:
            return []
        self._storing, self._unstored = self._unstored, []
        return [StoreParts(parts=tuple(part for _, _, part in self._storing))]

    def _on_stored(self, stored: PartsStored) -> list[IntakeOutput]:
        batch, self._storing = self._storing, []
        self._unstored_bytes -= sum(len(part.content) for _, _, part in batch)
        self.store_failed = not stored.ok
        outputs: list[IntakeOutput] = []
        for link, upload, part in batch:
            if not stored.ok:
                upload.failed = True
            elif part.is_last and link.id in self._links:
                run = (part.task_id, part.attempt)
                outputs.append(RunDurable(link_id=link.id, lease_id=part.lease_id, run=run))
        if not stored.ok:
            waiting, self._unstored = self._unstored, []
            self._unstored_bytes -= sum(len(part.content) for _, upload, part in waiting if upload.failed)
            self._unstored = [entry for entry in waiting if not entry[1].failed]
        for link in tuple(self._links.values()):
            outputs += self._give_credit(link)
        return outputs + self._store()

    # -- readers

    def _on_wanted(self, wanted: FetchWanted) -> list[IntakeOutput]:
        link_id = self._by_node.get(wanted.node_id)
        if link_id is None or not self.is_attached(wanted.node_id):
            return [Deliver(request_id=wanted.request_id, paused=True)]
        self._fetches[wanted.request_id] = Fetch(link_id, wanted.lease_id)
        fetch = pb.Fetch(
            request_id=wanted.request_id,
            lease_id=wanted.lease_id,
            offset=wanted.offset,
            tail_bytes=wanted.tail_bytes,
            follow=wanted.follow,
            task_id=wanted.task_id,
            attempt=wanted.attempt,
            length=wanted.length,
        )
        return [TellAgent(link_id=link_id, message=pb.FromSchedulerOutput(fetch=fetch))]

    def _on_left(self, request_id: int) -> list[IntakeOutput]:
        fetch = self._fetches.pop(request_id, None)
        if fetch is None or fetch.link_id not in self._links:
            return []
        return [_cancel(fetch.link_id, request_id)]

    def _on_group(self, group: CommittedGroup) -> list[IntakeOutput]:
        for event in group.events:
            for rank, placed in enumerate(event.ranks if isinstance(event, GangPlaced) else (event,)):
                if isinstance(placed, TaskPlaced):
                    holder = Holder(
                        node_id=placed.node_id,
                        task_id=placed.task_id,
                        attempt=run_number(placed.attempt, rank),
                    )
                    self._holders.put(placed.lease_id, holder)
        return []


def _why_foreign(holder: Holder, link: Link, upload: Upload) -> str:
    if holder.node_id != link.node_id:
        return "another node holds or held this lease"
    if (holder.task_id, holder.attempt) != (upload.task_id, upload.attempt):
        return "the lease belongs to another task or attempt"
    return ""


def _cancel(link_id: int, request_id: int) -> TellAgent:
    cancel = pb.CancelFetch(request_id=request_id)
    return TellAgent(link_id=link_id, message=pb.FromSchedulerOutput(cancel_fetch=cancel))
