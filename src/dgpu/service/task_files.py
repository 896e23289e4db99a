"""Files of tasks, read from their nodes. Each agent has a stream for them, beside its main stream and its output
stream.

The agent answers each request of the scheduler once. A download requests one piece more than its reader has taken, so a
slow reader costs two pieces of memory here and an open file there. The scheduler stores no part of a file.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable

import msgspec

from dgpu.core.model.attempt_usage import AttemptUsage
from dgpu.core.model.ids import LeaseId, NodeId, TaskId
from dgpu.service.content.copies import ContentCopies
from dgpu.service.content.store import ContentStore
from dgpu.wire.proto import agent_pb2 as pb

PIECE_BYTES = 512 * 1024
ANSWER_S = 30.0
ATTACH_S = 5.0
MEASURE_S = 1.0
MAX_REQUESTS = 64  # in progress at one node
MAX_TRANSFERS = 16  # open files of one node

Send = Callable[[pb.FromSchedulerFiles], None]


class FilesUnavailable(Exception):  # noqa: N818 - the name states the failure
    """`code`: a code of the agent, or node_unreachable, node_busy, node_silent, changed."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """A path below the directory of a run."""

    node_id: NodeId
    task_id: TaskId
    run: int  # wire.ranks.run_number
    workdir: str  # of the task; empty: the run has its own directory
    path: str
    account: tuple[str, str] | None = None  # tenant and user, see agent.proto

    def message(self) -> pb.FilePlace:
        account = pb.Account(tenant=self.account[0], user=self.account[1]) if self.account else None
        return pb.FilePlace(
            task_id=self.task_id,
            run=self.run,
            workdir=self.workdir,
            path=self.path.encode(),
            account=account,
        )


class FileLink:
    """The stream of one node."""

    __slots__ = ("node_id", "send", "transfers", "waiting")

    def __init__(self, node_id: NodeId, send: Send) -> None:
        self.node_id = node_id
        self.send = send
        self.waiting: dict[int, asyncio.Future[pb.FileAnswer]] = {}
        self.transfers = 0


class FileStreams:
    """`content`: what nodes fetch for their tasks; None: nothing is stored for them."""

    def __init__(self, content: ContentStore | None = None) -> None:
        self.content = content
        self.content_copies: ContentCopies | None = None  # None: a lone scheduler
        self.is_connected: Callable[[NodeId], bool] = lambda _: False
        self._links: dict[NodeId, FileLink] = {}
        self._awaited: dict[NodeId, asyncio.Event] = {}
        self._last_request_id = 0

    # Streams of the agents

    def attach(self, node_id: NodeId, send: Send) -> FileLink:
        older = self._links.get(node_id)
        if older is not None:
            self.detach(older)
        link = self._links[node_id] = FileLink(node_id, send)
        if (awaited := self._awaited.pop(node_id, None)) is not None:
            awaited.set()
        return link

    def detach(self, link: FileLink) -> None:
        if self._links.get(link.node_id) is link:
            del self._links[link.node_id]
        for future in link.waiting.values():
            if not future.done():
                future.set_exception(_unreachable(link.node_id))

    def on_answer(self, link: FileLink, answer: pb.FileAnswer) -> None:
        future = link.waiting.get(answer.request_id)
        if future is not None and not future.done():  # else the answer came too late
            future.set_result(answer)

    # Reading

    async def list_files(self, place: Place, *, after: bytes, limit: int) -> tuple[list[pb.FileEntry], bool]:
        """Entries in the order of their names, and whether there are more."""
        ask = pb.ListFiles(place=place.message(), after=after, limit=limit)
        answer = await self._ask(await self._link(place.node_id), pb.FileRequest(list=ask))
        return list(answer.entries), answer.more

    async def open_file(self, place: Place) -> FileReading:
        """The caller closes the file."""
        link = await self._link(place.node_id)
        if link.transfers >= MAX_TRANSFERS:
            raise FilesUnavailable(
                "node_busy", f"{MAX_TRANSFERS} files of node {place.node_id} are being read"
            )
        link.transfers += 1
        request = pb.FileRequest(open=pb.OpenFile(place=place.message()))
        try:
            answer = await self._ask(link, request)
            entry = _only_entry(answer, link.node_id)
        except BaseException:
            self.release(link, request.request_id)  # the file may have been opened anyway
            raise
        return FileReading(self, link, request.request_id, entry)

    async def read_piece(self, link: FileLink, handle: int, offset: int, size: int) -> bytes:
        ask = pb.ReadFile(handle=handle, offset=offset, size=size)
        return (await self._ask(link, pb.FileRequest(read=ask))).data

    async def measure(self, node_id: NodeId, lease_id: LeaseId) -> AttemptUsage | None:
        """What a run has used so far. None: its node does not say; no caller waits for a node without a stream."""
        link = self._links.get(node_id)
        if link is None:
            return None
        ask = pb.MeasureRun(lease_id=lease_id)
        try:
            async with asyncio.timeout(MEASURE_S):
                told = (await self._ask(link, pb.FileRequest(measure=ask))).usage
        except (FilesUnavailable, TimeoutError):
            return None  # an older agent does not know the request
        return AttemptUsage(
            gpu_samples=told.gpu_samples,
            gpu_percent=min(told.gpu_percent, 100),
            gpu_percent_p95=min(told.gpu_percent_p95, 100),
            gpu_peak_mb=told.gpu_peak_mb,
            cpu_ms=told.cpu_ms,
            rss_mb=told.rss_mb,
        )

    def release(self, link: FileLink, handle: int) -> None:
        link.transfers -= 1
        if handle and self._links.get(link.node_id) is link:
            close = pb.FileRequest(close=pb.CloseFile(handle=handle))
            link.send(pb.FromSchedulerFiles(request=close))

    async def _link(self, node_id: NodeId) -> FileLink:
        """A node that has just registered opens its stream for files a moment later."""
        if node_id not in self._links and self.is_connected(node_id):
            awaited = self._awaited.setdefault(node_id, asyncio.Event())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ATTACH_S):
                    await awaited.wait()
        link = self._links.get(node_id)
        if link is not None:
            return link
        if not self.is_connected(node_id):
            raise _unreachable(node_id)
        detail = f"node {node_id} serves no files; its agent may be of an older version"
        raise FilesUnavailable("node_unreachable", detail)

    async def _ask(self, link: FileLink, request: pb.FileRequest) -> pb.FileAnswer:
        if self._links.get(link.node_id) is not link:
            raise _unreachable(link.node_id)
        if len(link.waiting) >= MAX_REQUESTS:
            raise FilesUnavailable("node_busy", f"node {link.node_id} has {MAX_REQUESTS} requests to answer")
        self._last_request_id += 1
        request.request_id = self._last_request_id
        future: asyncio.Future[pb.FileAnswer] = asyncio.get_running_loop().create_future()
        link.waiting[request.request_id] = future
        link.send(pb.FromSchedulerFiles(request=request))
        try:
            async with asyncio.timeout(ANSWER_S):
                answer = await future
        except TimeoutError:
            detail = f"node {link.node_id} did not answer within {ANSWER_S:.0f} s; its disk or mount may hang"
            raise FilesUnavailable("node_silent", detail) from None
        finally:
            del link.waiting[request.request_id]
        if answer.error:
            code = "node_busy" if answer.error == "busy" else answer.error
            raise FilesUnavailable(code, answer.detail)
        return answer


class FileReading:
    """One open file. Its size is that at the time of opening."""

    def __init__(self, streams: FileStreams, link: FileLink, handle: int, entry: pb.FileEntry) -> None:
        self._streams = streams
        self._link = link
        self._handle = handle
        self._closed = False
        self.entry = entry

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._streams.release(self._link, self._handle)

    @property
    def version(self) -> str:
        """Changes with the file, so that a download that broke continues only in the same content."""
        return f"{self.entry.size:x}-{self.entry.modified_ms:x}"

    async def pieces(self, offset: int = 0) -> AsyncGenerator[bytes, None]:
        """From `offset` to the size that the file had when it was opened. Raises FilesUnavailable if it has become
        shorter.
        """
        size = self.entry.size
        coming = self._ask(offset, size)
        try:
            while offset < size:
                piece = await coming
                offset += len(piece)
                if not piece:
                    raise FilesUnavailable(
                        "changed", f"the file was truncated to {offset} bytes during the read"
                    )
                coming = self._ask(offset, size)
                yield piece
        finally:
            coming.cancel()
            with contextlib.suppress(asyncio.CancelledError, FilesUnavailable):
                await coming
            self.close()

    def _ask(self, offset: int, size: int) -> asyncio.Task[bytes]:
        """Requests the next piece while the reader takes the current one."""
        wanted = min(PIECE_BYTES, size - offset)

        async def ask() -> bytes:
            if not wanted:
                return b""
            return await self._streams.read_piece(self._link, self._handle, offset, wanted)

        return asyncio.get_running_loop().create_task(ask())


def _only_entry(answer: pb.FileAnswer, node_id: NodeId) -> pb.FileEntry:
    if len(answer.entries) != 1:
        raise FilesUnavailable("malformed", f"node {node_id} sent an invalid answer")
    return answer.entries[0]


def _unreachable(node_id: NodeId) -> FilesUnavailable:
    return FilesUnavailable(
        "node_unreachable", f"node {node_id} is not connected, and the files are on that node"
    )
