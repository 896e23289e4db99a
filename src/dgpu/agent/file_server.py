"""Answers the scheduler's requests for files of tasks, and for what runs have used so far.

Each call of a file runs in a thread; memory and files are bounded. The scheduler requests one piece at a time, so a
slow reader costs only an open file.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import structlog

from dgpu.agent.accounts import Accounts, NoAccount
from dgpu.agent.background import Busy, DaemonPool
from dgpu.agent.files import Entry, FilesError, OpenedFile, Root, list_files, open_file
from dgpu.agent.keeper_settings import boot_ms
from dgpu.agent.run_meter import RunMeter
from dgpu.core.model.ids import LeaseId
from dgpu.wire.proto import agent_pb2 as pb
from dgpu.wire.run_dirs import run_dir_name

MAX_OPEN_FILES = 32  # per node
MAX_PIECE_BYTES = 512 * 1024
MAX_ENTRIES = 1_000  # per page
IDLE_MS = 300_000  # then an open file without reads is closed
_THREADS = 4
_MAX_WAITING = 64

_log = structlog.get_logger("dgpu.agent")


def file_threads() -> DaemonPool:
    """Shared by the nodes of an agent."""
    return DaemonPool("files", threads=_THREADS, max_waiting=_MAX_WAITING)


class _Open:
    __slots__ = ("closing", "fd", "reads", "used_ms")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.reads = 0  # in progress: the file is closed after them
        self.closing = False
        self.used_ms = boot_ms()


class FileServer:
    """Serves one stream, whose end closes its files. `send` takes answers."""

    def __init__(
        self,
        work_dir: Path | None,
        accounts: Accounts,
        threads: DaemonPool,
        send: Callable[[pb.FromAgentFiles], None],
        meter: RunMeter,
    ) -> None:
        self._meter = meter
        self._work_dir = work_dir
        self._accounts = accounts
        self._threads = threads
        self._send = send
        self._open: dict[int, _Open] = {}
        self._opening = 0
        self._closed = False
        self._tasks: set[asyncio.Task[None]] = set()

    def on_request(self, request: pb.FileRequest) -> None:
        if request.WhichOneof("what") == "close":
            self._let_go(request.close.handle)
            return
        task = asyncio.get_running_loop().create_task(self._answer(request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        self._closed = True
        for handle in list(self._open):
            self._let_go(handle)

    async def _answer(self, request: pb.FileRequest) -> None:
        try:
            answer = await self._answer_to(request)
        except FilesError as error:
            answer = pb.FileAnswer(error=error.code, detail=str(error))
        except Busy:
            answer = pb.FileAnswer(error="busy", detail="too many files of this node are being read")
        except Exception as error:  # noqa: BLE001 - one request must not end the stream
            _log.exception("file_request_failed")
            answer = pb.FileAnswer(error="unreadable", detail=type(error).__name__)
        answer.request_id = request.request_id
        if not self._closed:
            self._send(pb.FromAgentFiles(answer=answer))

    async def _answer_to(self, request: pb.FileRequest) -> pb.FileAnswer:
        match request.WhichOneof("what"):
            case "list":
                return await self._list(request.list)
            case "open":
                return await self._open_file(request.request_id, request.open.place)
            case "read":
                return await self._read(request.read)
            case "measure":
                lease_id = LeaseId(request.measure.lease_id)
                return pb.FileAnswer(usage=await self._threads.run(lambda: self._meter.measure(lease_id)))
            case _:
                raise FilesError("unknown_request", "this agent does not know the request")

    async def _list(self, ask: pb.ListFiles) -> pb.FileAnswer:
        limit = max(1, min(ask.limit, MAX_ENTRIES))
        path, after = ask.place.path, ask.after
        page = await self._threads.run(
            lambda: list_files(self._root(ask.place), path, after=after, limit=limit)
        )
        return pb.FileAnswer(entries=[_message(entry) for entry in page.entries], more=page.more)

    async def _open_file(self, handle: int, place: pb.FilePlace) -> pb.FileAnswer:
        self._close_idle()
        if len(self._open) + self._opening >= MAX_OPEN_FILES:
            raise Busy
        self._opening += 1
        try:
            path = place.path
            opened: OpenedFile = await self._threads.run(lambda: open_file(self._root(place), path))
        finally:
            self._opening -= 1
        self._open[handle] = _Open(opened.fd)
        if self._closed:
            self._let_go(handle)
        return pb.FileAnswer(entries=[_message(opened.entry)])

    async def _read(self, ask: pb.ReadFile) -> pb.FileAnswer:
        file = self._open.get(ask.handle)
        if file is None or file.closing:
            raise FilesError("closed", "the file was not read for a long time and has been closed")
        size, offset = max(1, min(ask.size, MAX_PIECE_BYTES)), ask.offset
        file.reads += 1
        file.used_ms = boot_ms()
        try:
            data = await self._threads.run(lambda: os.pread(file.fd, size, offset))
        except OSError as error:
            raise FilesError("unreadable", error.strerror or "read failed") from None
        finally:
            file.reads -= 1
            if file.closing and not file.reads:
                os.close(file.fd)
        return pb.FileAnswer(data=data)

    def _root(self, place: pb.FilePlace) -> Root:
        """In a thread: the look-up of a user may wait for a directory service."""
        if place.workdir:
            if not place.HasField("account"):
                return Root(place.workdir)
            try:
                person = self._accounts.find(place.account.tenant, place.account.user)
            except NoAccount as error:
                raise FilesError("not_readable", str(error)) from None
            return Root(place.workdir, account=person.account)
        if self._work_dir is None:
            raise FilesError("directory_gone", "tasks of this node have no directories")
        return Root(str(self._work_dir / run_dir_name(place.task_id, place.run)), is_own=True)

    def _close_idle(self) -> None:
        now_ms = boot_ms()
        for handle, file in list(self._open.items()):
            if not file.reads and now_ms - file.used_ms > IDLE_MS:
                self._let_go(handle)

    def _let_go(self, handle: int) -> None:
        file = self._open.pop(handle, None)
        if file is not None:
            file.closing = True
            if not file.reads:
                os.close(file.fd)


def _message(entry: Entry) -> pb.FileEntry:
    return pb.FileEntry(
        name=entry.name,
        kind=entry.kind,
        size=entry.size_bytes,
        modified_ms=entry.modified_ms,
        target=entry.target,
    )
