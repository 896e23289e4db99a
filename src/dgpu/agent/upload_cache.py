"""Archives of uploads on a node: fetched from the scheduler once, verified, and kept for further tasks."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import hashlib
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import structlog

from dgpu.agent.background import DaemonPool
from dgpu.agent.unpack import CannotUnpack
from dgpu.core.model.ids import LeaseId, NodeId
from dgpu.wire.proto import agent_pb2 as pb

CONTENT = "/dgpu.agent.v1.Agents/Content"
MAX_CACHE_BYTES = 10 << 30
MIN_FREE_BYTES = 512 << 20  # left on the disk after a fetch
SILENT_S = 60.0  # without a piece: the call is made again
GIVE_UP_S = 300.0  # without a byte of progress
_RETRY_S = 1.0
_HASH_BYTES = 1 << 20
_FULL = {errno.ENOSPC, errno.EDQUOT}

_log = structlog.get_logger("dgpu.agent")


class UploadCache:
    """For all nodes of an agent. All calls come from the loop."""

    def __init__(self, folder: Path, *, max_bytes: int = MAX_CACHE_BYTES) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._channels: dict[NodeId, tuple[grpc.aio.Channel, str]] = {}
        self._fetches: dict[str, asyncio.Task[Path]] = {}
        self._users: dict[str, int] = {}  # of archives that are being read
        self._threads = DaemonPool("uploads", threads=2, max_waiting=1_000)

    def connected(self, node_id: NodeId, channel: grpc.aio.Channel, session_id: str) -> None:
        self._channels[node_id] = (channel, session_id)

    def lost(self, node_id: NodeId) -> None:
        self._channels.pop(node_id, None)

    def connection(self, node_id: NodeId) -> tuple[grpc.aio.Channel, str] | None:
        """Of the node's session; None: it has none now."""
        return self._channels.get(node_id)

    @contextlib.asynccontextmanager
    async def archive(self, node_id: NodeId, lease_id: LeaseId, digest: str) -> AsyncIterator[Path]:
        """The path of a verified archive; it stays while it is used. Raises CannotUnpack."""
        self._users[digest] = self._users.get(digest, 0) + 1
        try:
            yield await self._get(node_id, lease_id, digest)
        finally:
            self._users[digest] -= 1
            if not self._users[digest]:
                del self._users[digest]

    async def _get(self, node_id: NodeId, lease_id: LeaseId, digest: str) -> Path:
        while (fetch := self._fetches.get(digest)) is not None:
            # Of another task. If that one fails, this task tries for itself: its own lease may be better.
            with contextlib.suppress(CannotUnpack):
                return await asyncio.shield(fetch)
        fetch = asyncio.get_running_loop().create_task(self._fetch(node_id, lease_id, digest))
        self._fetches[digest] = fetch
        fetch.add_done_callback(lambda done: self._on_done(digest, done))
        return await asyncio.shield(fetch)

    def _on_done(self, digest: str, done: asyncio.Task[Path]) -> None:
        self._fetches.pop(digest, None)
        if not done.cancelled():
            done.exception()  # the caller may have left

    async def _fetch(self, node_id: NodeId, lease_id: LeaseId, digest: str) -> Path:
        path, part = self._folder / digest, self._folder / f"{digest}.part"
        try:
            if await self._threads.run(lambda: _is_there(path)):
                return path
            await self._download(node_id, lease_id, part)
            if await self._threads.run(lambda: _digest_of(part)) != digest:
                await self._threads.run(lambda: part.unlink(missing_ok=True))
                raise CannotUnpack("the upload was damaged on the way to the node", is_of_node=True)
            await self._threads.run(lambda: part.rename(path))
            await self._threads.run(lambda: self._trim(digest))
        except OSError as error:
            if error.errno in _FULL:
                # Half an archive must not keep the disk full. Another node may have room, or this one later.
                await self._threads.run(lambda: part.unlink(missing_ok=True))
                raise CannotUnpack("there is no room on the node for the upload", is_of_node=True) from None
            raise CannotUnpack(
                f"the upload cannot be stored on the node: {error.strerror}", is_of_node=True
            ) from None
        return path

    async def _download(self, node_id: NodeId, lease_id: LeaseId, part: Path) -> None:
        """Continues where an earlier call ended. Raises CannotUnpack or OSError."""
        await self._threads.run(lambda: self._folder.mkdir(mode=0o700, parents=True, exist_ok=True))
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
        descriptor = await self._threads.run(lambda: os.open(part, flags, 0o600))
        try:
            give_up_s = time.monotonic() + GIVE_UP_S
            offset = os.fstat(descriptor).st_size
            while True:
                before = offset
                try:
                    offset, size = await self._one_call(node_id, lease_id, descriptor, offset)
                    if offset >= size:
                        return
                except TimeoutError:
                    pass
                except grpc.aio.AioRpcError as error:
                    _refuse_final(error)
                offset = os.fstat(descriptor).st_size
                if offset > before:
                    give_up_s = time.monotonic() + GIVE_UP_S
                if time.monotonic() > give_up_s:
                    raise CannotUnpack(
                        f"the scheduler sent no byte of the upload for {GIVE_UP_S:g} s", is_of_node=True
                    )
                await asyncio.sleep(_RETRY_S)
        finally:
            os.close(descriptor)

    async def _one_call(
        self, node_id: NodeId, lease_id: LeaseId, descriptor: int, offset: int
    ) -> tuple[int, int]:
        """The offset after the last byte, and the size. Raises TimeoutError, AioRpcError, CannotUnpack, OSError."""
        if node_id not in self._channels:
            raise TimeoutError
        channel, session_id = self._channels[node_id]
        method = channel.unary_stream(
            CONTENT,
            request_serializer=pb.ContentRequest.SerializeToString,
            response_deserializer=pb.ContentPiece.FromString,
        )
        request = pb.ContentRequest(node_id=node_id, session_id=session_id, lease_id=lease_id, offset=offset)
        call: Any = method(request)
        size = -1
        try:
            while True:
                async with asyncio.timeout(SILENT_S):
                    piece = await call.read()
                if piece is grpc.aio.EOF:
                    return offset, max(size, 0)
                if size < 0:
                    size = piece.size
                    await self._threads.run(functools.partial(self._make_room, size - offset))
                await self._threads.run(functools.partial(_write_all, descriptor, piece.data, offset))
                offset += len(piece.data)
        finally:
            call.cancel()

    def _trim(self, newest: str) -> None:
        """Deletes archives, the least recently used first."""
        entries = self._oldest_first()
        total = sum(size for size, _ in entries)
        for size, each in entries:
            if total <= self._max_bytes:
                return
            if each.name != newest and each.name not in self._users:
                each.unlink(missing_ok=True)
                total -= size

    def _make_room(self, needed: int) -> None:
        """Deletes archives that no task uses, as many as it takes. Raises OSError if the disk has no room even so."""
        for _, each in self._oldest_first():
            if _has_room(self._folder, needed):
                return
            if each.name not in self._users:
                each.unlink(missing_ok=True)
        if not _has_room(self._folder, needed):
            raise OSError(errno.ENOSPC, "no room")

    def _oldest_first(self) -> list[tuple[int, Path]]:
        entries = [(each.stat(), each) for each in self._folder.iterdir() if not each.name.endswith(".part")]
        return [(found.st_size, each) for found, each in sorted(entries, key=lambda entry: entry[0].st_mtime)]


def _refuse_final(error: grpc.aio.AioRpcError) -> None:
    if error.code() is grpc.StatusCode.NOT_FOUND:
        raise CannotUnpack(error.details() or "the upload is no longer at the scheduler") from None
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        raise CannotUnpack("the scheduler is of an older version and sends no uploads") from None
    _log.debug("upload_interrupted", code=error.code().name, reason=error.details())


def _is_there(path: Path) -> bool:
    """It counts as used now."""
    try:
        os.utime(path)
    except FileNotFoundError:
        return False
    return True


def _digest_of(path: Path) -> str:
    found = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_HASH_BYTES):
            found.update(piece)
    return found.hexdigest()


def _has_room(folder: Path, needed: int) -> bool:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize >= needed + MIN_FREE_BYTES


def _write_all(descriptor: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written
