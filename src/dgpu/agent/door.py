"""The keeper's socket: one agent at a time, of the same user or root. Standard library only."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
from pathlib import Path
from typing import NamedTuple

from dgpu.agent.frames import Decoder, Frame, FrameTooLarge, encode

_READ_BYTES = 256 * 1024
_MAX_READS = 256
_MAX_UNSENT_BYTES = 4 * 1024 * 1024  # an agent that does not read gets the then current state later


class Arrived(NamedTuple):
    frames: list[Frame]
    joined: bool = False
    left: bool = False


class Door:
    def __init__(self, path: Path, epoll: select.epoll) -> None:
        self._path = path
        self._epoll = epoll
        self._listener = listen(path)
        self._agent: socket.socket | None = None
        self._decoder = Decoder()
        self._unsent = bytearray()
        self._watched = 0  # epoll events of the agent's socket
        epoll.register(self._listener, select.EPOLLIN)

    @property
    def connected(self) -> bool:
        return self._agent is not None

    @property
    def has_room(self) -> bool:
        return len(self._unsent) < _MAX_UNSENT_BYTES

    def serve(self, fd: int, mask: int) -> Arrived:
        """Frames first, then a disconnect, then a new connection: a killed agent may leave all three at once."""
        if fd == self._listener.fileno():
            had_agent = self.connected
            frames = self._receive(_MAX_READS)  # a disconnect is noticed before the next agent is refused
            left = had_agent and not self.connected
            return Arrived(frames, left=left, joined=self._accept())
        if self._agent is None or fd != self._agent.fileno():
            return Arrived([])
        if mask & select.EPOLLOUT:
            self._push()
        if not mask & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR):
            return Arrived([])
        frames = self._receive(1)
        return Arrived(frames, left=not self.connected)

    def _receive(self, max_reads: int) -> list[Frame]:
        frames: list[Frame] = []
        for _ in range(max_reads):
            if self._agent is None:
                break
            try:
                received = self._agent.recv(_READ_BYTES)
                frames += self._decoder.feed(received)
            except BlockingIOError:
                break
            except (OSError, ValueError, FrameTooLarge):
                received = b""
            if not received:
                self.hang_up()
        return frames

    def send(self, frame: Frame) -> None:
        self._unsent += encode(frame)
        self._push()

    def close(self) -> None:
        self._push()
        self.hang_up()
        self._listener.close()
        with contextlib.suppress(OSError):
            self._path.unlink()

    def _accept(self) -> bool:
        try:
            peer, _ = self._listener.accept()
        except OSError:
            return False
        _, uid, _ = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if uid not in {0, os.geteuid()} or self._agent is not None:
            with contextlib.suppress(OSError):
                peer.sendall(
                    encode({"refused": "another agent is connected" if self._agent else "another user"})
                )
            peer.close()
            return False
        peer.setblocking(False)
        self._agent = peer
        self._decoder = Decoder()
        self._unsent.clear()
        self._watched = select.EPOLLIN
        self._epoll.register(peer, self._watched)
        return True

    def _push(self) -> None:
        if self._agent is None:
            self._unsent.clear()
            return
        try:
            while self._unsent:
                del self._unsent[: self._agent.send(self._unsent)]
        except BlockingIOError:
            pass
        except OSError:
            self._unsent.clear()  # the reading side will notice
        wanted = select.EPOLLIN | (select.EPOLLOUT if self._unsent else 0)
        if wanted != self._watched:
            self._watched = wanted
            with contextlib.suppress(OSError):
                self._epoll.modify(self._agent, wanted)

    def hang_up(self) -> None:
        if self._agent is not None:
            with contextlib.suppress(OSError):
                self._epoll.unregister(self._agent)
            self._agent.close()
            self._agent = None
            self._unsent.clear()


def listen(path: Path) -> socket.socket:
    """Binds a relative name: the whole path may be longer than a socket address allows."""
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.open(".", os.O_RDONLY | os.O_CLOEXEC)
    mask = os.umask(0o177)
    try:
        os.chdir(path.parent)
        listener.bind(path.name)
    finally:
        os.umask(mask)
        os.fchdir(before)
        os.close(before)
    listener.listen(8)
    listener.setblocking(False)
    return listener
