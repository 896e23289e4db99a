"""Output of tasks on an asyncio loop: streams of agents, the store in a thread, readers. The intake decides.

Every node has an output stream beside its main stream, so that output never delays a heartbeat.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor

import structlog

from dgpu.core.events import GangPlaced, TaskPlaced
from dgpu.core.model.ids import LeaseId, NodeId, TaskId
from dgpu.core.state import ClusterState
from dgpu.service.copies.copies import Copies, Doubt
from dgpu.service.copies.release import Freed
from dgpu.service.copies.wholeness import Wholeness
from dgpu.service.machine.outputs import CommittedGroup
from dgpu.service.task_output.intake import DEFAULT_HEAD_BYTES, DEFAULT_TAIL_BYTES, OutputIntake
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
from dgpu.service.task_output.pack import OutputPart
from dgpu.service.task_output.reading import (
    SETTLE_S,
    NodeSilent,
    OutputState,
    OutputUnavailable,
    Place,
    RankSource,
    Reading,
    Seen,
    Source,
)
from dgpu.service.task_output.recent import Recent
from dgpu.service.task_output.store import LogStore
from dgpu.service.task_output.stored import StoredOutput
from dgpu.service.task_output.stream_ends import OutputLink, StateReader, WaitingReader
from dgpu.wire.answers import instant
from dgpu.wire.proto import agent_pb2 as pb
from dgpu.wire.ranks import run_number

MAX_PLACES = 100_000
ANSWER_S = 20.0  # time for a node to send the next piece
_LOOK_AGAIN_S = 1.0

_log = structlog.get_logger("dgpu.output")


class OutputStreams:
    def __init__(
        self,
        store: LogStore,
        runtime: StateReader,
        *,
        head_bytes: int = DEFAULT_HEAD_BYTES,
        tail_bytes: int = DEFAULT_TAIL_BYTES,
        wholeness: Wholeness | None = None,  # None: a lone scheduler, whose nodes wait for no second copy
    ) -> None:
        self._store = store
        self.copies = None if wholeness is None else Copies(store, wholeness, self._append, self._free)
        self._runtime = runtime
        self._intake = OutputIntake(
            session_of=runtime.session_of, head_bytes=head_bytes, tail_bytes=tail_bytes
        )
        self._links: dict[int, OutputLink] = {}
        self._attached_s: dict[NodeId, float] = {}
        self._readers: dict[int, WaitingReader] = {}
        self._last_id = 0
        self._places = Recent[tuple[TaskId, int], Place](MAX_PLACES)
        self._changed: dict[TaskId, asyncio.Event] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._past_holder: Callable[[LeaseId], HolderFound] | None = None
        self.on_complaint: Callable[[Complain], None] = lambda _: None
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="output-store")
        self._unsubscribe = runtime.subscribe(self._on_group)

    def look_up_with(self, past_holder: Callable[[LeaseId], HolderFound]) -> None:
        """Leases from before this start are only in the history. The call may block."""
        self._past_holder = past_holder

    async def mend_store(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._disk, self._store.mend)

    async def close(self) -> None:
        self._unsubscribe()
        while self._tasks:
            await asyncio.wait(self._tasks)
        self._disk.shutdown()
        self._store.close()

    @property
    def refused(self) -> int:
        """Streams and chunks that did not come from the holder of the lease."""
        return self._intake.refused

    # Streams of the agents

    def attach(self, node_id: NodeId, session_id: str, link: OutputLink) -> int:
        """The number of the link. An unregistered node or session gets a refusal, and its stream ends."""
        self._last_id = link_id = self._last_id + 1
        self._links[link_id] = link
        self._put(LinkOpened(link_id=link_id, node_id=node_id, session_id=session_id))
        if link_id in self._links:
            self._attached_s[node_id] = time.monotonic()
            for changed in self._changed.values():
                changed.set()  # a reader may wait for this node
        return link_id

    def detach(self, link_id: int) -> None:
        if self._links.pop(link_id, None) is not None:
            self._put(LinkEnded(link_id=link_id))

    def on_chunk(self, link_id: int, chunk: pb.OutputChunk) -> None:
        if link_id in self._links:
            self._put(ChunkArrived(link_id=link_id, chunk=chunk))

    # Driving the machine

    def _put(self, value: IntakeInput) -> None:
        for output in self._intake.on_input(value, self._runtime.now_ms()):
            self._carry_out(output)

    def _carry_out(self, output: IntakeOutput) -> None:
        match output:
            case TellAgent():
                if (link := self._links.get(output.link_id)) is not None:
                    link.send(output.message)
            case EndLink():
                if (link := self._links.pop(output.link_id, None)) is not None:
                    link.hang_up(output.reason, fault=output.fault)
            case FindHolder():
                self._spawn(self._find_holder(output.lease_id))
            case RunDurable():
                self._on_durable(output)
            case StoreParts():
                self._spawn(self._store_parts(output))
            case Deliver():
                self._deliver(output)
            case Complain():
                _log.warning(output.event, **output.facts)
                self.on_complaint(output)

    def _deliver(self, output: Deliver) -> None:
        reader = self._readers.get(output.request_id)
        if reader is None:
            return
        if output.data:
            reader.pieces.append((output.offset, output.data))
        reader.error = output.error or reader.error
        reader.ended = reader.ended or output.ended
        reader.paused = reader.paused or output.paused
        reader.arrived.set()

    def _on_durable(self, durable: RunDurable) -> None:
        if self.copies is None or self.copies.on_durable(durable.run, durable.lease_id, durable.link_id):
            self._free(Freed(durable.lease_id, durable.link_id))
        elif (link := self._links.get(durable.link_id)) is not None:
            link.send(pb.FromSchedulerOutput(received=pb.Received(lease_id=durable.lease_id)))

    def _free(self, freed: Freed[LeaseId]) -> None:
        if (link := self._links.get(freed.link_id)) is not None:
            link.send(pb.FromSchedulerOutput(stored=pb.Stored(lease_id=freed.key)))

    async def _append(self, parts: Sequence[OutputPart]) -> None:
        """Copies of another scheduler. Raises OSError."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._disk, self._store.append, parts, self._runtime.now_ms())

    async def _store_parts(self, output: StoreParts) -> None:
        ok = True
        try:
            await self._append(output.parts)
        except Exception as error:  # noqa: BLE001 - a full disk must not affect the scheduler
            # No agent gets Stored: agents keep the bytes and send them again.
            _log.warning("output_not_stored", parts=len(output.parts), error=str(error))
            ok = False
        else:
            for part in output.parts:
                if part.is_last:
                    self._places.drop((part.task_id, part.attempt))
        self._put(PartsStored(ok=ok))

    async def _find_holder(self, lease_id: LeaseId) -> None:
        found = HolderFound(
            lease_id=lease_id, holder=await self._runtime.read(lambda state: holder_in(state, lease_id))
        )
        if found.holder is None and self._past_holder is not None:
            try:
                found = await asyncio.to_thread(self._past_holder, lease_id)
            except Exception as error:  # noqa: BLE001 - the history may be unavailable: the agent repeats
                _log.warning("holder_not_found", lease=lease_id, error=str(error))
                found = HolderFound(lease_id=lease_id, holder=None, is_sure=False)
        self._put(found)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Reading

    async def read(
        self, task_id: TaskId, attempt: int = 0, tail_bytes: int = 0, *, follow: bool = False, rank: int = 0
    ) -> AsyncIterator[bytes]:
        """The output of an attempt. Without an attempt number: of the latest one and, when following, of later ones.

        `tail_bytes` 0 means everything that is left. Raises OutputUnavailable if output exists or existed but cannot be
        read.
        """
        reading = Reading(self._source(rank), task_id, attempt, tail_bytes, follow=follow)
        async for piece in reading.pieces():
            yield piece

    async def describe(self, task_id: TaskId, attempt: int, rank: int = 0) -> OutputState:
        """Which bytes of an attempt are stored here, which are only on its node, and which are lost."""
        source = self._source(rank)
        stored = await source.stored(task_id, attempt)
        if stored is None:
            place = source.place(task_id, attempt)
            seen = await source.look(task_id)
            if seen is not None and seen.place is not None and seen.attempt == attempt:
                place = seen.place
            node_id = place.node_id if place is not None else None
            return OutputState(
                node_id=node_id, is_connected=node_id is not None and self.is_attached(node_id)
            )
        return OutputState(
            stored=stored,
            node_id=stored.node_id or None,
            is_connected=bool(stored.node_id) and self.is_attached(stored.node_id),
        )

    @property
    def is_settling(self) -> bool:
        """Just taken over: output that is not here may arrive soon."""
        return self.copies is not None and self.copies.is_settling

    async def doubt(self, task_id: TaskId, attempt: int, node_id: str | None, ended_ms: int) -> Doubt | None:
        """Why an ended attempt without any known output may still have written some; None: it wrote nothing.

        The attempt is a run number, and ended_ms a time before which it did not end.
        """
        if self.copies is not None and (doubt := self.copies.doubt(ended_ms)) is not None:
            return doubt
        why = await self._why_doubtful(task_id, attempt, node_id, ended_ms)
        return Doubt(why, passes=self.is_settling) if why else None

    async def _why_doubtful(self, task_id: TaskId, attempt: int, node_id: str | None, ended_ms: int) -> str:
        place = self._places.get((task_id, attempt))
        if place is not None and self.is_attached(place.node_id):
            return ""  # never stored, and its node was asked just now
        whole_since_ms = await asyncio.to_thread(lambda: self._store.whole_since_ms)
        if ended_ms <= whole_since_ms:
            return f"output from before {instant(whole_since_ms)} is no longer kept"
        if node_id is None or not self.is_attached(NodeId(node_id)):
            where = f"node {node_id} is not connected" if node_id else "its node is unknown here"
            return f"{where}, and nothing of it was stored"
        is_fresh = time.monotonic() - self._attached_s.get(NodeId(node_id), 0.0) < SETTLE_S
        intake = self._intake
        if is_fresh or intake.is_receiving(NodeId(node_id)) or intake.is_storing or intake.store_failed:
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
            place = None
            if lease is not None and not task.allocation:
                place = Place(lease.id, lease.node_id, task_id, run_number(task.attempt, lease.rank))
            node_id = task.node_ids[rank] if rank < len(task.node_ids) else task.node_id
            return Seen(task.status, task.attempt, place, node_id)

        return await self._runtime.read(look)

    async def stored(self, task_id: TaskId, attempt: int) -> StoredOutput | None:
        return await asyncio.to_thread(self._store.find, task_id, attempt)

    async def piece(self, stored: StoredOutput, offset: int) -> tuple[int, bytes] | None:
        return await asyncio.to_thread(self._store.piece, stored, offset)

    def place(self, task_id: TaskId, attempt: int) -> Place | None:
        return self._places.get((task_id, attempt))

    def is_attached(self, node_id: NodeId) -> bool:
        return self._intake.is_attached(node_id)

    async def wait_for_change(self, task_id: TaskId) -> None:
        """Returns when the task has changed, or after a second."""
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
        self, place: Place, offset: int, tail_bytes: int = 0, *, length: int = 0, follow: bool = False
    ) -> AsyncIterator[tuple[int, bytes]]:
        """Pieces, each with its offset. Ends when the agent or a broken stream ends it; the caller finds the reason."""
        end = offset + length
        while self.is_attached(place.node_id) and not (length and offset >= end):
            self._last_id = request_id = self._last_id + 1
            reader = self._readers[request_id] = WaitingReader()
            wanted = FetchWanted(
                request_id=request_id,
                node_id=place.node_id,
                lease_id=place.lease_id,
                task_id=place.task_id,
                attempt=place.attempt,
                offset=offset,
                tail_bytes=tail_bytes,
                length=end - offset if length else 0,
                follow=follow,
            )
            before = offset
            self._put(wanted)
            try:
                while not (reader.ended or reader.paused) or reader.pieces:
                    if not reader.pieces:
                        await self._wait(reader, place.node_id, follow=follow)
                        continue
                    pieces, reader.pieces = reader.pieces, []
                    self._put(FetchTaken(request_id=request_id))
                    for begin, piece in pieces:
                        offset, tail_bytes = begin + len(piece), 0
                        yield begin, piece
            finally:
                del self._readers[request_id]
                self._put(FetchLeft(request_id=request_id))
            if reader.error:
                raise OutputUnavailable(reader.error)
            if reader.ended or (offset == before and not self.is_attached(place.node_id)):
                return

    async def _wait(self, reader: WaitingReader, node_id: NodeId, *, follow: bool) -> None:
        """Waits for the next piece; without a limit while following."""
        try:
            async with asyncio.timeout(None if follow else ANSWER_S):
                await reader.arrived.wait()
        except TimeoutError:
            raise NodeSilent(f"node {node_id} does not answer") from None
        reader.arrived.clear()

    def _source(self, rank: int) -> Source:
        return RankSource(self, rank) if rank else self

    def _on_group(self, group: CommittedGroup) -> None:
        self._put(group)
        for event in group.events:
            for rank, placed in enumerate(event.ranks if isinstance(event, GangPlaced) else (event,)):
                if isinstance(placed, TaskPlaced):
                    number = run_number(placed.attempt, rank)
                    place = Place(placed.lease_id, placed.node_id, placed.task_id, number)
                    self._places.put((placed.task_id, number), place)
            if self._changed:
                changed = self._changed.get(getattr(event, "task_id", TaskId(0)))
                if changed is not None:
                    changed.set()


def holder_in(state: ClusterState, lease_id: LeaseId) -> Holder | None:
    """The holder of a lease that is not released."""
    lease = state.leases.get(lease_id)
    if lease is None:
        return None
    number = run_number(state.tasks[lease.task_id].attempt, lease.rank)
    return Holder(node_id=lease.node_id, task_id=lease.task_id, attempt=number)
