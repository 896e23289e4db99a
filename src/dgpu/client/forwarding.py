"""Ports of a running task on this machine: each connection to a local port is a channel to a port of the task."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from dgpu.client.channel import Channel, Output, connect
from dgpu.client.errors import DgpuError, Unreachable

if TYPE_CHECKING:
    from dgpu.client.sync import Client
    from dgpu.wire.answers import TaskAnswer
    from dgpu.wire.channel_answers import OpenedChannel

MAX_CONNECTIONS = 48  # at once; further ones wait
_READ_BYTES = 32 << 10
_PATIENCE_SECONDS = 30.0  # for a scheduler or a node that comes back
_PAUSE_SECONDS = 0.5
_LOOK_SECONDS = 2.0
_LOOPBACK = (("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6))  # browsers may use both
_PASSING = frozenset({"unreachable", "unknown_channel", "node_unreachable", "node_silent", "run_not_started"})


class PortTaken(Exception):  # noqa: N818 - the name states the failure
    pass


def local_url(task_id: str, local: int) -> str:
    """Its own host: cookies do not respect ports, and the dashboard may be at localhost, too."""
    return f"http://{task_id.lower().replace('_', '-')}.localhost:{local}/"


class Forwarder:
    """`say` takes one line for people. Use it in a loop; `close` ends it."""

    def __init__(
        self, client: Client, task_id: str, *, rank: int | None = None, say: Callable[[str], None] = print
    ) -> None:
        self._client = client
        self._task_id = task_id
        self._rank = rank
        self._say = say
        self._servers: list[asyncio.Server] = []
        self._opened: dict[int, OpenedChannel] = {}  # by port
        self._room = asyncio.Semaphore(MAX_CONNECTIONS)
        self._last_said = ""
        self._look = asyncio.Event()

    async def listen(self, port: int, local: int) -> int:
        """Listens on this local port, 0: any; only on the loopback addresses. Raises PortTaken."""

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                async with self._room:
                    await self._serve(port, reader, writer)
            except asyncio.CancelledError:
                return  # the loop ends: asyncio would report a handler that was cancelled
            finally:
                writer.close()

        sockets = _listening(local)
        for each in sockets:
            self._servers.append(await asyncio.start_server(serve, sock=each))
        chosen: int = sockets[0].getsockname()[1]
        return chosen

    async def ended(self) -> TaskAnswer:
        """Waits until the task has ended."""
        while True:
            with contextlib.suppress(DgpuError):  # a scheduler that restarts
                task = await asyncio.to_thread(self._client.get, self._task_id)
                if task.status not in {"pending", "running"}:
                    return task
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_SECONDS):
                    await self._look.wait()
                await asyncio.sleep(_PAUSE_SECONDS)
            self._look.clear()

    def close(self) -> None:
        for server in self._servers:
            server.close()

    async def _serve(self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            channel = await self._channel(port)
        except DgpuError as error:
            self._tell(str(error))
            self._look.set()
            return
        self._last_said = ""
        upward = asyncio.ensure_future(_upward(reader, channel))
        try:
            with contextlib.suppress(OSError):  # the local program has gone
                while isinstance(told := await channel.receive(), Output):
                    writer.write(told.data)
                    await writer.drain()
                if told.closed != "ended":
                    self._tell(f"A connection to port {port} was lost: {told.detail or told.closed}.")
        except Unreachable as error:
            self._tell(str(error))
        finally:
            upward.cancel()
            channel.close()
            self._look.set()

    async def _channel(self, port: int) -> Channel:
        """Through the scheduler that leads now. Raises DgpuError."""
        deadline = asyncio.get_running_loop().time() + _PATIENCE_SECONDS
        while True:
            try:
                opened = self._opened.get(port) or await self._open(port)
                return await connect(self._client, opened)
            except DgpuError as error:
                passes = isinstance(error, Unreachable) or error.code in _PASSING
                if not passes or asyncio.get_running_loop().time() > deadline:
                    raise
                was_known = self._opened.pop(port, None) is not None
            if not was_known:
                await asyncio.sleep(_PAUSE_SECONDS)

    async def _open(self, port: int) -> OpenedChannel:
        opened = await asyncio.to_thread(
            lambda: self._client.open_channel(self._task_id, rank=self._rank, port=port)
        )
        self._opened[port] = opened
        return opened

    def _tell(self, text: str) -> None:
        """A browser tries again and again: the same message once."""
        if text != self._last_said:
            self._last_said = text
            self._say(text)


async def _upward(reader: asyncio.StreamReader, channel: Channel) -> None:
    try:
        while data := await reader.read(_READ_BYTES):
            await channel.send(data)
        channel.end_input()
    except (OSError, Unreachable):
        channel.close()


def _listening(port: int) -> list[socket.socket]:
    """Sockets on all loopback addresses with the same port. Raises PortTaken."""
    made: list[socket.socket] = []
    try:
        for host, family in _LOOPBACK:
            try:
                made.append(_bound(host, family, port or (made[0].getsockname()[1] if made else 0)))
            except OSError as error:
                if made and error.errno in {errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL}:
                    break  # no IPv6
                raise
    except OSError as error:
        for each in made:
            each.close()
        raise PortTaken(f"Port {port} of this machine cannot be used: {error.strerror}.") from error
    return made


def _bound(host: str, family: int, port: int) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind((host, port))
        made.listen(64)
    except OSError:
        made.close()
        raise
    return made
