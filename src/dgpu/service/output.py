"""Output of tasks: from the agent while it lasts, from the store afterwards, as one stream for whoever reads.

Every node has one output stream beside its main one, so that output never delays a heartbeat. The agent sends only what
it has credit for. Credit comes back when bytes arrive, not when a reader takes them: a reader that is slow has its fetch
cancelled and begun again later from where it stopped, and nobody else on that node waits for it.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

import structlog

from dgpu.core.events import GangPlaced, TaskPlaced
from dgpu.core.ids import LeaseId, NodeId, TaskId
from dgpu.core.state import ClusterState
from dgpu.service.logstore import MOST_ENTRY_BYTES, AttemptOutput, LogStore
from dgpu.service.output_reading import SETTLE_S, OutputUnavailable, Place, RankSource, Reading, Seen
from dgpu.service.outputs import CommittedGroup
from dgpu.wire.answers import instant
from dgpu.wire.proto import agent_pb2 as pb
from dgpu.wire.ranks import run_number

WINDOW_BYTES = 1 << 20  # a stream's credit
_CREDIT_STEP_BYTES = 256 << 10
_MOST_UNREAD_BYTES = 256 << 10  # of one reader, before its fetch pauses
_MOST_PARTIAL_BYTES = 8 << 20  # of one stream: attempts that are arriving
_MOST_UNSTORED_BYTES = 64 << 20  # of all streams: attempts that wait for the disk
_MOST_PLACES = 100_000
_LOOK_AGAIN_S = 1.0

_log = structlog.get_logger("dgpu.output")
T = TypeVar("T")


class StateReader(Protocol):
    """What this needs of the runtime."""

    async def read(self, look: Callable[[ClusterState], T]) -> T: ...

    def subscribe(self, callback: Callable[[CommittedGroup], None]) -> Callable[[], None]: ...

    def now_ms(self) -> int: ...


class _Partial:
    __slots__ = ("content", "offset")

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self.content = bytearray()


class _Link:
    __slots__ = ("arriving_bytes", "attached_s", "node_id", "owed_bytes", "partial", "send")

    def __init__(self, node_id: NodeId, send: Callable[[pb.FromSchedulerOutput], None]) -> None:
        self.node_id = node_id
        self.send = send
        self.attached_s = time.monotonic()
        self.owed_bytes = 0
        self.arriving_bytes = 0
        self.partial: dict[int, _Partial] = {}


class _Fetch:
    """What one reader has not read yet."""

    __slots__ = ("arrived", "ended", "error", "link", "next_offset", "paused", "pieces", "unread_bytes")

    def __init__(self, link: _Link) -> None:
        self.link = link
        self.pieces: list[bytes] = []
        self.unread_bytes = 0
        self.next_offset = -1  # unknown until the first piece
        self.ended = False
        self.paused = False
        self.error = ""
        self.arrived = asyncio.Event()


class OutputStreams:
    def __init__(self, store: LogStore, runtime: StateReader) -> None:
        self._store = store
        self._runtime = runtime
        self._links: dict[NodeId, _Link] = {}
        self._fetches: dict[int, _Fetch] = {}
        self._last_request_id = 0
        self._places: OrderedDict[tuple[TaskId, int], Place] = OrderedDict()
        self._changed: dict[TaskId, asyncio.Event] = {}
        self._unstored: list[tuple[_Link, AttemptOutput]] = []
        self._unstored_bytes = 0
        self._storing: asyncio.Task[None] | None = None
        self._store_failed = False  # the last time
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="output-store")
        self._unsubscribe = runtime.subscribe(self._on_group)

    async def close(self) -> None:
        self._unsubscribe()
        if self._storing is not None:
            await self._storing
        self._disk.shutdown()
        self._store.close()

    # The streams of the agents

    def attach(self, node_id: NodeId, send: Callable[[pb.FromSchedulerOutput], None]) -> _Link:
        older = self._links.get(node_id)
        if older is not None:
            self.detach(older)
        link = self._links[node_id] = _Link(node_id, send)
        link.send(pb.FromSchedulerOutput(credit=pb.Credit(bytes=WINDOW_BYTES)))
        for changed in self._changed.values():
            changed.set()  # a reader may have waited for this node
        return link

    def detach(self, link: _Link) -> None:
        if self._links.get(link.node_id) is link:
            del self._links[link.node_id]
        for fetch in self._fetches.values():
            if fetch.link is link:
                fetch.paused = True
                fetch.arrived.set()

    def on_chunk(self, link: _Link, chunk: pb.OutputChunk) -> None:
        if chunk.request_id:
            self._on_fetched(chunk)
        else:
            self._on_archived(link, chunk)
        link.owed_bytes += len(chunk.data)
        self._give_credit(link)

    def _give_credit(self, link: _Link) -> None:
        if link.owed_bytes >= _CREDIT_STEP_BYTES and self._unstored_bytes < _MOST_UNSTORED_BYTES:
            link.send(pb.FromSchedulerOutput(credit=pb.Credit(bytes=link.owed_bytes)))
            link.owed_bytes = 0

    def _on_fetched(self, chunk: pb.OutputChunk) -> None:
        fetch = self._fetches.get(chunk.request_id)
        if fetch is None:
            return  # the reader left
        if chunk.data:
            fetch.pieces.append(chunk.data)
            fetch.unread_bytes += len(chunk.data)
            fetch.next_offset = chunk.offset + len(chunk.data)
        fetch.error = chunk.error or fetch.error
        fetch.ended = fetch.ended or chunk.last or bool(chunk.error)
        if fetch.unread_bytes > _MOST_UNREAD_BYTES and not (fetch.paused or fetch.ended):
            fetch.paused = True
            cancel = pb.CancelFetch(request_id=chunk.request_id)
            fetch.link.send(pb.FromSchedulerOutput(cancel_fetch=cancel))
        fetch.arrived.set()

    # Keeping the output of attempts that are over

    def _on_archived(self, link: _Link, chunk: pb.OutputChunk) -> None:
        partial = link.partial.get(chunk.lease_id)
        if partial is None or partial.offset + len(partial.content) != chunk.offset:
            # The first piece, or the agent began anew.
            self._forget_partial(link, chunk.lease_id)
            partial = link.partial[chunk.lease_id] = _Partial(chunk.offset)
        partial.content += chunk.data
        link.arriving_bytes += len(chunk.data)
        if len(partial.content) > MOST_ENTRY_BYTES or link.arriving_bytes > _MOST_PARTIAL_BYTES:
            self._forget_partial(link, chunk.lease_id)
            return
        if not chunk.last:
            return
        self._forget_partial(link, chunk.lease_id)
        output = AttemptOutput(
            task_id=TaskId(chunk.task_id),
            attempt=chunk.attempt,
            lease_id=LeaseId(chunk.lease_id),
            offset=partial.offset,
            content=bytes(partial.content),
        )
        self._unstored.append((link, output))
        self._unstored_bytes += len(output.content)
        if self._storing is None:
            self._storing = asyncio.get_running_loop().create_task(self._store_all())

    def _forget_partial(self, link: _Link, lease_id: int) -> None:
        partial = link.partial.pop(lease_id, None)
        if partial is not None:
            link.arriving_bytes -= len(partial.content)

    async def _store_all(self) -> None:
        """Everything that arrived while the last batch was being synced is the next batch."""
        loop = asyncio.get_running_loop()
        while self._unstored:
            batch, self._unstored = self._unstored, []
            outputs = [output for _, output in batch]
            try:
                await loop.run_in_executor(self._disk, self._store.append, outputs, self._runtime.now_ms())
            except Exception as error:  # noqa: BLE001 - a full disk here must not hurt the scheduler
                # Nobody is told Stored: the agents keep the bytes and send them again.
                _log.warning("output_not_stored", attempts=len(batch), error=str(error))
                self._store_failed = True
            else:
                self._store_failed = False
                for link, output in batch:
                    link.send(pb.FromSchedulerOutput(stored=pb.Stored(lease_id=output.lease_id)))
                    self._places.pop((output.task_id, output.attempt), None)
            self._unstored_bytes -= sum(len(output.content) for output in outputs)
            for link in tuple(self._links.values()):
                self._give_credit(link)
        self._storing = None

    # Reading

    async def read(
        self, task_id: TaskId, attempt: int = 0, tail_bytes: int = 0, *, follow: bool = False, rank: int = 0
    ) -> AsyncIterator[bytes]:
        """An attempt's output; without an attempt, the latest one's, and when following, also of those that come after.

        `tail_bytes` 0 means all that is left. Raises OutputUnavailable when there is or was output that cannot be had.
        """
        source = RankSource(self, rank) if rank else self
        reading = Reading(source, task_id, attempt, tail_bytes, follow=follow)
        async for piece in reading.pieces():
            yield piece

    async def doubt(self, task_id: TaskId, attempt: int, node_id: str | None, ended_ms: int) -> str:
        """Of an ended attempt nothing was found: why it may have written something all the same; empty: it has not.

        The attempt is a run number, and ended_ms a time before which it did not end.
        """
        place = self._places.get((task_id, attempt))
        if place is not None and place.node_id in self._links:
            return ""  # never stored, and its node was asked just now
        whole_since_ms = await asyncio.to_thread(lambda: self._store.whole_since_ms)
        if ended_ms <= whole_since_ms:
            return f"what was written before {instant(whole_since_ms)} is no longer kept"
        link = None if node_id is None else self._links.get(NodeId(node_id))
        if link is None:
            where = f"node {node_id} is not connected" if node_id else "its node is not known here"
            return f"{where}, and nothing of it was stored"
        is_fresh = time.monotonic() - link.attached_s < SETTLE_S
        if is_fresh or link.partial or self._unstored or self._store_failed:
            return f"node {node_id} may still have to send it"
        return ""

    async def look(self, task_id: TaskId, rank: int = 0) -> Seen | None:
        def look(state: ClusterState) -> Seen | None:
            task = state.tasks.get(task_id)
            if task is None:
                return None
            gang = state.gangs.get(task_id)
            lease_id = task.lease_id if gang is None else gang.leases[min(rank, len(gang.leases) - 1)]
            lease = state.leases.get(lease_id)
            place = None if lease is None or task.allocation else Place(lease.id, lease.node_id)
            node_id = task.node_ids[rank] if rank < len(task.node_ids) else task.node_id
            return Seen(task.status, task.attempt, place, node_id)

        return await self._runtime.read(look)

    async def stored(self, task_id: TaskId, attempt: int) -> AttemptOutput | None:
        return await asyncio.to_thread(self._store.find, task_id, attempt)

    def place(self, task_id: TaskId, attempt: int) -> Place | None:
        return self._places.get((task_id, attempt))

    def is_attached(self, node_id: NodeId) -> bool:
        return node_id in self._links

    async def wait_for_change(self, task_id: TaskId) -> None:
        """Something about the task happened, or a second passed."""
        changed = self._changed.setdefault(task_id, asyncio.Event())
        try:
            async with asyncio.timeout(_LOOK_AGAIN_S):
                await changed.wait()
        except TimeoutError:
            pass
        finally:
            changed.clear()
            self._changed.pop(task_id, None)

    async def fetch(
        self, place: Place, offset: int, tail_bytes: int, *, follow: bool
    ) -> AsyncIterator[tuple[int, bytes]]:
        """Pieces with the offset behind each. Ends when the agent says so or its stream breaks; the caller looks why."""
        link = self._links.get(place.node_id)
        while link is not None:
            self._last_request_id = request_id = self._last_request_id + 1
            fetch = self._fetches[request_id] = _Fetch(link)
            ask = pb.Fetch(
                request_id=request_id,
                lease_id=place.lease_id,
                offset=offset,
                tail_bytes=tail_bytes,
                follow=follow,
            )
            link.send(pb.FromSchedulerOutput(fetch=ask))
            try:
                while not (fetch.ended or fetch.paused) or fetch.pieces:
                    if not fetch.pieces:
                        await fetch.arrived.wait()
                        fetch.arrived.clear()
                        continue
                    pieces, fetch.pieces, fetch.unread_bytes = fetch.pieces, [], 0
                    offset, tail_bytes = fetch.next_offset, 0
                    yield offset, b"".join(pieces)
            finally:
                del self._fetches[request_id]
                if not (fetch.ended or fetch.paused):
                    cancel = pb.CancelFetch(request_id=request_id)
                    link.send(pb.FromSchedulerOutput(cancel_fetch=cancel))
            if fetch.error:
                raise OutputUnavailable(fetch.error)
            if fetch.ended or self._links.get(place.node_id) is not link:
                return

    def _on_group(self, group: CommittedGroup) -> None:
        for event in group.events:
            for rank, placed in enumerate(event.ranks if isinstance(event, GangPlaced) else (event,)):
                if isinstance(placed, TaskPlaced):
                    number = run_number(placed.attempt, rank)
                    self._places[placed.task_id, number] = Place(placed.lease_id, placed.node_id)
            if self._changed:
                changed = self._changed.get(getattr(event, "task_id", TaskId(0)))
                if changed is not None:
                    changed.set()
        while len(self._places) > _MOST_PLACES:
            self._places.popitem(last=False)
