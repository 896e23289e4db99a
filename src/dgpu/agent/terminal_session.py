"""One terminal of a task, or one command inside a run: its descriptors and what is on the way. Standard library only.

No call blocks. A session that cannot pass its output on is not read, so its program waits as it would at any slow
terminal. All buffers are bounded.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import socket
import struct
import termios
from collections.abc import Callable
from typing import Any

from dgpu.agent.terminal_frames import CLOSED, DATA, ERRORS, FrameDecoder, encode, encode_json

REPLAY_BYTES = 64 * 1024  # of a terminal, for a client that attaches
MAX_UNSENT_BYTES = 256 * 1024  # to a client; then its session is not read
MAX_INPUT_BYTES = 256 * 1024  # to a program; then its client is not read
_READ_BYTES = 32 * 1024
_MAX_LAST_READS = 64  # a process that escaped from its session may go on writing


class Client:
    """One connection of an agent."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.decoder = FrameDecoder()
        self.session: Session | None = None
        self.unsent = bytearray()
        self.is_closing = False  # after the bytes on the way
        self.stuck_since_ms = 0  # 0: it reads

    @property
    def is_full(self) -> bool:
        return len(self.unsent) >= MAX_UNSENT_BYTES

    def send(self, frame: bytes) -> None:
        if not self.is_closing:
            self.unsent += frame

    def close_with(self, reason: str, detail: str = "", exit_code: int = 0) -> None:
        self.send(encode_json(CLOSED, {"reason": reason, "detail": detail, "exit_code": exit_code}))
        self.is_closing = True
        self.session = None

    def push(self) -> None:
        """Raises OSError if the agent has gone."""
        with contextlib.suppress(BlockingIOError):
            while self.unsent:
                del self.unsent[: self.socket.send(self.unsent)]
                self.stuck_since_ms = 0


class Replay:
    """The last bytes of a terminal."""

    def __init__(self, max_bytes: int = REPLAY_BYTES) -> None:
        self._max_bytes = max_bytes
        self._bytes = bytearray()
        self._is_cut = False

    def add(self, output: bytes) -> None:
        self._bytes += output
        if len(self._bytes) > self._max_bytes:
            del self._bytes[: len(self._bytes) - self._max_bytes]
            self._is_cut = True

    def text(self) -> bytes:
        """From the first whole line on, if its beginning is gone."""
        start = self._bytes.find(b"\n") + 1 if self._is_cut else 0
        return bytes(self._bytes[start:])


class Session:
    """`on_close` is called with each descriptor before it is closed: its number may be used again at once."""

    def __init__(
        self, opened: dict[str, Any], descriptors: list[int], on_close: Callable[[int], None]
    ) -> None:
        self._on_close = on_close
        self.id: int = opened["id"]
        self.is_task: bool = opened["task"]
        self.log_fd = descriptors.pop() if self.is_task else -1
        self.terminal_fd = descriptors[0] if opened["terminal"] else -1
        self.input_fd = descriptors[0]
        self.sources = {self.terminal_fd: DATA} if opened["terminal"] else {}
        if not opened["terminal"]:
            self.sources = {descriptors[1]: DATA, descriptors[2]: ERRORS}
        self.replay = Replay()
        self.client: Client | None = None
        self.input = bytearray()
        self.unlogged = b""
        self.input_ends = False
        self.end: tuple[int, str] | None = None  # exit code and error, once no process writes any more
        for descriptor in self.descriptors():
            os.set_blocking(descriptor, False)

    def descriptors(self) -> set[int]:
        return {fd for fd in (*self.sources, self.input_fd, self.log_fd, self.terminal_fd) if fd >= 0}

    def wanted(self) -> dict[int, int]:
        """The events to wait for, by descriptor."""
        found: dict[int, int] = {}
        if not self.unlogged and (self.end is not None or self.client is None or not self.client.is_full):
            found = dict.fromkeys(self.sources, select.EPOLLIN)
        if self.input and self.input_fd >= 0:
            found[self.input_fd] = found.get(self.input_fd, 0) | select.EPOLLOUT
        if self.unlogged:
            found[self.log_fd] = select.EPOLLOUT
        return found

    def serve(self, fd: int) -> None:
        if fd == self.log_fd:
            self._log()
        if fd in self.sources:
            self.read(fd)
        if fd == self.input_fd:
            self.push_input()

    def read(self, fd: int) -> bool:
        """False: there is nothing to read now."""
        try:
            output = os.read(fd, _READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:  # of a terminal without processes
            output = b""
        if not output:
            self._close_source(fd)
            return False
        kind = self.sources[fd]
        if self.client is not None:
            self.client.send(encode(kind, output))
        if self.is_task:
            self.replay.add(output)
            self.unlogged += output
            self._log()
        return True

    def drain(self) -> bool:
        """After the end of all processes: passes the rest on. True: nothing is left."""
        for fd in tuple(self.sources):
            for _ in range(_MAX_LAST_READS):
                if self.unlogged or not self.read(fd):
                    break
        return not self.unlogged

    def take_input(self, given: bytes) -> None:
        if self.input_fd >= 0:
            self.input += given
            self.push_input()

    def end_input(self) -> None:
        self.input_ends = True
        self.push_input()

    def push_input(self) -> None:
        try:
            while self.input:
                del self.input[: os.write(self.input_fd, self.input)]
        except BlockingIOError:
            return
        except OSError:  # the program reads no more
            self.input.clear()
            self._close_input()
            return
        if self.input_ends:
            self._close_input()

    def set_size(self, rows: int, columns: int) -> None:
        if self.terminal_fd >= 0:
            with contextlib.suppress(OSError):
                fcntl.ioctl(self.terminal_fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def redraw(self) -> None:
        """A full-screen program draws its screen again, also if the size did not change."""
        if self.terminal_fd >= 0:
            with contextlib.suppress(OSError):
                group = os.tcgetpgrp(self.terminal_fd)
                if group > 0:
                    os.killpg(group, signal.SIGWINCH)

    def close(self) -> None:
        for descriptor in self.descriptors():
            self._close(descriptor)
        self.sources.clear()
        self.input_fd = self.log_fd = self.terminal_fd = -1

    def _log(self) -> None:
        try:
            while self.unlogged:
                self.unlogged = self.unlogged[os.write(self.log_fd, self.unlogged) :]
        except BlockingIOError:
            pass
        except OSError:  # the scribe has closed it
            self.unlogged = b""

    def _close_source(self, fd: int) -> None:
        del self.sources[fd]
        if fd != self.terminal_fd:
            self._close(fd)

    def _close_input(self) -> None:
        """A terminal has no end of input: its program reads Ctrl-D."""
        if self.input_fd >= 0 and self.input_fd != self.terminal_fd:
            self._close(self.input_fd)
            self.input_fd = -1

    def _close(self, fd: int) -> None:
        self._on_close(fd)
        os.close(fd)
