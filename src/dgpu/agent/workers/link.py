"""A connection to the socket of one worker. asyncio, no decisions."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable
from typing import cast

from dgpu.agent.workers.words import WorkerHungUp, WorkerSaid
from dgpu.core.model.ids import LeaseId
from dgpu.worker.frames import AgentDecoder, FrameError, ToWorker, encode

FIRST_PAUSE_SECONDS = 0.02  # a worker listens some tens of milliseconds after its start
MAX_PAUSE_SECONDS = 0.5
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


class WorkerLink(asyncio.Protocol):
    """Connects again whenever the connection ends, until it is closed. `uid`: of the worker's process."""

    def __init__(
        self, lease_id: LeaseId, path: str, uid: int, feed: Callable[[WorkerSaid | WorkerHungUp], None]
    ) -> None:
        self._lease_id = lease_id
        self._path = path
        self._uid = uid
        self._feed = feed
        self._decoder = AgentDecoder()
        self._transport: asyncio.Transport | None = None
        self._broken = ""
        self._is_closed = False
        self._is_paused = False
        self._connecting = asyncio.get_running_loop().create_task(self._connect())

    def tell(self, frames: list[ToWorker]) -> None:
        if self._transport is not None:
            self._transport.write(b"".join(map(encode, frames)))

    def pause(self) -> bool:
        """Until `resume`, the worker waits when its socket is full. Returns whether this is a change, like `resume`."""
        is_change = self._transport is not None and not self._is_paused
        if self._transport is not None and is_change:
            self._is_paused = True
            self._transport.pause_reading()
        return is_change

    def resume(self) -> bool:
        is_change, self._is_paused = self._is_paused, False
        if self._transport is not None and is_change:
            self._transport.resume_reading()
        return is_change

    def close(self) -> None:
        self._is_closed = True
        self._connecting.cancel()
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    # -- called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Nothing is read before the check."""
        self._transport = cast(asyncio.Transport, transport)
        self._check_user(self._transport)

    def data_received(self, data: bytes) -> None:
        try:
            frames = self._decoder.feed(data)
        except FrameError as error:
            self._break(str(error))
            return
        if frames and not self._is_closed:
            self._feed(WorkerSaid(lease_id=self._lease_id, frames=frames))

    def connection_lost(self, _error: Exception | None) -> None:
        self._transport = None
        if self._is_closed:
            return
        self._feed(WorkerHungUp(lease_id=self._lease_id, broken=self._broken))
        if not self._is_closed and not self._broken:
            self._connecting = asyncio.get_running_loop().create_task(self._connect())

    # -- the connection

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        pause = FIRST_PAUSE_SECONDS
        while True:
            with contextlib.suppress(OSError):
                self._decoder, self._is_paused = AgentDecoder(), False
                await loop.create_unix_connection(lambda: self, self._path)
                return
            await asyncio.sleep(pause)
            pause = min(pause * 2, MAX_PAUSE_SECONDS)

    def _check_user(self, transport: asyncio.Transport) -> None:
        """The directory belongs to the user of the worker: its socket may be replaced by one of another user."""
        peer: socket.socket = transport.get_extra_info("socket")
        found = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        _, uid, _ = _CREDENTIALS.unpack(found)
        if uid != self._uid:
            self._break(f"its socket belongs to user {uid}, not to user {self._uid}")

    def _break(self, how: str) -> None:
        self._broken = how
        if self._transport is not None:
            self._transport.abort()
