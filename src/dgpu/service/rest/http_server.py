"""Accepts connections for HTTP: a few per turn of the loop, each counted against its user's share, and never with the
last open files.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import ssl
from typing import Any

import structlog
import uvicorn
from uvicorn.server import ServerState

from dgpu.service.rest.doors import Doors, Guest, Key
from dgpu.service.rest.failures import Peer
from dgpu.service.rest.peer import PeerUids
from dgpu.service.rest.protocol import KEEP_ALIVE_SECONDS, HttpProtocol, last_answer
from dgpu.service.rest.turns import Turns
from dgpu.wire.address import is_loopback

BACKLOG = 4_096  # the kernel uses its own maximum if that is lower
MAX_ACCEPTS_PER_TURN = 16
ACCEPT_PAUSE_SECONDS = 0.1
HANDSHAKE_SECONDS = 10.0
MAX_UNSENT_IN_KERNEL = 128 << 10
_MAPPED = "::ffff:"  # an IPv4 address on a socket for both families
_SHED_FOR_FILES = 16
_LOG_EVERY_SECONDS = 10.0
_NO_FILES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_TOO_MANY = last_answer(
    b"503 Service Unavailable", "too_many_connections", "Too many connections are open. Try again soon."
)

_log = structlog.get_logger("dgpu.rest")


class HttpServer:
    """Serves an ASGI application on a bound socket. The caller provides the loop and handles signals."""

    def __init__(
        self,
        app: Any,
        doors: Doors | None = None,
        turns: Turns | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._tls = tls
        self._config = uvicorn.Config(
            app,
            http=HttpProtocol,
            ws="none",
            loop="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
        )
        self._config.load()
        self._state = ServerState()
        self._doors = Doors() if doors is None else doors
        self._turns = Turns() if turns is None else turns
        self._owners = frozenset({0, os.getuid()})
        self._uids = PeerUids()
        self._loop = asyncio.get_running_loop()
        self._listening: socket.socket | None = None
        self._opening: set[asyncio.Task[Any]] = set()
        self._next_log_s = 0.0

    async def start(self, sock: socket.socket) -> None:
        sock.listen(BACKLOG)
        sock.setblocking(False)
        self._listening = sock
        self._loop.add_reader(sock, self._accept)

    async def stop(self, grace_seconds: float = 2.0) -> None:
        """Accepts nothing new; requests in progress get a moment, endless streams are cut."""
        if self._listening is None:
            return
        self._loop.remove_reader(self._listening)
        self._listening.close()
        self._listening = None
        for connection in tuple(self._state.connections):
            connection.shutdown()
        if self._state.tasks:
            await asyncio.wait(tuple(self._state.tasks), timeout=grace_seconds)
        for connection in tuple(self._state.connections):
            # A cancelled request would be answered with 500. A closed connection lets the client ask again.
            if isinstance(connection, HttpProtocol) and connection.is_unanswered:
                connection.transport.abort()
        for task in tuple(self._state.tasks):
            task.cancel()
        if self._state.tasks:
            await asyncio.wait(tuple(self._state.tasks), timeout=grace_seconds)
        for connection in tuple(self._state.connections):
            connection.transport.abort()
        self._uids.close()

    def _accept(self) -> None:
        for _ in range(MAX_ACCEPTS_PER_TURN):
            if self._listening is None:
                return
            try:
                connection, address = self._listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _NO_FILES:
                    self._pause(error)
                    return
                continue  # the connection failed before it was accepted
            self._receive(connection, address[0], address[1])

    def _pause(self, error: OSError) -> None:
        """No file is left. That is load, not a fault: idle connections are closed, and new ones wait in the backlog."""
        self._doors.accept_pauses += 1
        for guest in self._doors.oldest_idle_others(_SHED_FOR_FILES):
            guest.close()
        if self._loop.time() >= self._next_log_s:
            self._next_log_s = self._loop.time() + _LOG_EVERY_SECONDS
            _log.warning(
                "accept_paused",
                error=error.strerror,
                connections=self._doors.count,
                pauses=self._doors.accept_pauses,
            )
        if self._listening is not None:
            self._loop.remove_reader(self._listening)
            self._loop.call_later(ACCEPT_PAUSE_SECONDS, self._resume)

    def _resume(self) -> None:
        if self._listening is not None:
            self._loop.add_reader(self._listening, self._accept)

    def _receive(self, connection: socket.socket, host: str, port: int) -> None:
        host = host.removeprefix(_MAPPED)
        uid = None
        if is_loopback(host):
            ours = connection.getsockname()
            uid = self._uids.uid((ours[0].removeprefix(_MAPPED), ours[1]), (host, port))
        key: Key = ("address", host) if uid is None else ("uid", uid)
        entry = self._doors.enter(key, self._loop.time(), is_owner=uid in self._owners)
        if entry.victim is not None:
            entry.victim.close()
        if entry.guest is None:
            _refuse(connection, b"" if self._tls else _TOO_MANY)
            return
        opening = self._loop.create_task(self._open(connection, entry.guest, Peer(uid=uid, address=host)))
        self._opening.add(opening)
        opening.add_done_callback(self._opening.discard)

    async def _open(self, connection: socket.socket, guest: Guest, peer: Peer) -> None:
        try:
            connection.setblocking(False)
            # asyncio does this only for sockets that were created with the protocol number. Without it, an answer of
            # two writes waits 40 ms for the client's delayed acknowledgement.
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # Unread bytes stay in this process, where they are counted, and not in megabytes of kernel memory.
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, MAX_UNSENT_IN_KERNEL)
            await self._loop.connect_accepted_socket(
                lambda: HttpProtocol(
                    self._config,
                    self._state,
                    {"peer": peer, "guest": guest},
                    guest=guest,
                    doors=self._doors,
                    turns=self._turns,
                ),
                connection,
                ssl=self._tls,
                ssl_handshake_timeout=HANDSHAKE_SECONDS if self._tls else None,
            )
        except OSError:  # already gone, or its handshake failed
            if not guest.is_gone:
                self._doors.leave(guest)
            connection.close()


def _refuse(connection: socket.socket, answer: bytes) -> None:
    """Refuses at once and without a transport: a refused connection holds its file only during this call."""
    with contextlib.suppress(OSError):
        connection.setblocking(False)
        connection.send(answer)
        connection.shutdown(socket.SHUT_WR)
        connection.recv(65_536)  # unread bytes would make the kernel drop the answer
    connection.close()
