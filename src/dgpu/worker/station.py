"""The worker's end of the socket: one agent at a time, heartbeats, frames both ways, captured output.

One thread at a time may call `turn`. Any thread may call `send` and `wake`; a signal handler may call `leave_soon`.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Final

from dgpu.worker.desk import Desk
from dgpu.worker.frames import (
    PROTOCOL,
    Beat,
    FrameError,
    Hello,
    Models,
    ModelState,
    Output,
    Ready,
    ToAgent,
    WorkerDecoder,
    encode,
)
from dgpu.worker.output import CapturedOutput

# Output that no agent has read. At this bound the pipes are left full, and the function that prints waits.
MAX_UNREAD_OUTPUT: Final = 1 << 20
_MAX_BUFFERS: Final = 64
_READ_BYTES: Final = 1 << 18


class Station:
    def __init__(self, path: str, *, output: CapturedOutput, heartbeat_seconds: float) -> None:
        self.ready = False
        self.models: Callable[[], tuple[ModelState, ...]] = tuple
        self.desk = Desk(send=self.send, wake=self.wake, clock=time.monotonic)
        self._output = output
        self._heartbeat_seconds = heartbeat_seconds
        self._next_beat = 0.0
        self._listener = _listen(path)
        self._agent: socket.socket | None = None
        self._decoder = WorkerDecoder()
        self._outgoing: deque[tuple[bytes, bool]] = deque()  # frame, and whether it is output
        self._sending = threading.Lock()  # for the order of `_outgoing`
        self._offset = 0  # bytes of the first frame that have been sent
        self._unread_output = 0
        self._wake_reader, self._wake_writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._poll = select.poll()
        self._poll.register(self._listener, select.POLLIN)
        self._poll.register(self._wake_reader, select.POLLIN)
        self._reads_output = False
        self._waits_to_write = False
        self._leaves_soon = False
        self._follow_output()

    @property
    def connected(self) -> bool:
        return self._agent is not None

    @property
    def unsent(self) -> int:
        return len(self._outgoing)

    def send(self, frame: ToAgent) -> None:
        """Output is kept for the next agent, other frames are not: a new agent hears the present state."""
        with self._sending:
            if self._agent is not None or isinstance(frame, Output):
                self._append(frame)

    def _append(self, frame: ToAgent) -> None:
        body, is_output = encode(frame), isinstance(frame, Output)
        if is_output:
            self._unread_output += len(body)
        self._outgoing.append((body, is_output))

    def send_ready(self) -> None:
        self.ready = True
        self.send(Ready())

    def send_models(self) -> None:
        self.send(Models(models=self.models()))
        self.wake()

    def wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_writer, b"!")

    def leave_soon(self) -> None:
        """The next turn leaves: a signal handler may interrupt the lines that change the queue of calls."""
        self._leaves_soon = True
        self.wake()

    def turn(self, seconds: float | None) -> None:
        """Reads and writes what can be, waits for at most so long (None: until something happens)."""
        self.flush()
        self._follow_output()
        for fd, event in self._poll.poll(self._milliseconds(seconds)):
            self._serve(fd, event)
        if self._leaves_soon and not self.desk.leaving:
            self.desk.leave()
        self.desk.tick()
        self._beat()
        self.flush()
        self._follow_output()

    def take_output(self) -> None:
        """All that was printed so far comes before the frames to follow. Waits for an agent that reads slowly."""
        was_read = False
        while not was_read:
            was_read = self._reads_output  # at the begin of the turn: it may change at its end
            self.turn(0 if was_read else None)

    def flush(self) -> None:
        """Sends frames, several in one call of the kernel, until the agent does not read fast enough."""
        agent = self._agent
        while self._outgoing and agent is not None:
            with self._sending:
                buffers = [body for body, _ in islice(self._outgoing, _MAX_BUFFERS)]
            if self._offset:
                buffers[0] = buffers[0][self._offset :]
            try:
                sent = agent.sendmsg(buffers)
            except BlockingIOError:
                break
            except OSError:
                self._drop_agent()
                return
            self._account(sent)
        self._wait_to_write(bool(self._outgoing) and agent is not None)

    def close_in_child(self) -> None:
        """A forked child must neither speak nor listen here."""
        for one in (self._listener, self._agent):
            if one is not None:
                with contextlib.suppress(OSError):
                    os.close(one.detach())

    def _milliseconds(self, seconds: float | None) -> int | None:
        due = [value for value in (seconds, self.desk.seconds_to_next_tick()) if value is not None]
        if self._agent is not None:
            due.append(max(0.0, self._next_beat - time.monotonic()))
        # Rounded up: a wait that ends just before its time would be repeated without end.
        return int(min(due) * 1000 + 0.999) if due else None

    def _serve(self, fd: int, event: int) -> None:
        if fd in self._output.readers:
            self._take_output(fd)
        elif fd == self._wake_reader:
            os.read(self._wake_reader, 4096)
        elif fd == self._listener.fileno():
            self._accept()
        elif self._agent is not None and fd == self._agent.fileno() and event & ~select.POLLOUT:
            self._receive(self._agent)

    def _take_output(self, fd: int) -> None:
        data = self._output.read(fd)
        stream = self._output.readers[fd]
        if data and not self.desk.printed(stream, data):
            self._output.pass_on(stream, data)

    def _accept(self) -> None:
        try:
            newest, _ = self._listener.accept()
        except OSError:
            return
        if _peer_uid(newest) not in {0, os.getuid()}:
            newest.close()
            return
        if self._agent is not None:
            self._receive(self._agent)  # its last words: results that it has taken
        self._drop_agent()
        newest.setblocking(False)
        self._decoder = WorkerDecoder()
        self._poll.register(newest, select.POLLIN)
        self._waits_to_write = False
        self._next_beat = time.monotonic() + self._heartbeat_seconds
        self._greet(newest)
        self.send(Models(models=self.models()))
        if self.ready:
            self.send(Ready())
        self.desk.resend()

    def _greet(self, newest: socket.socket) -> None:
        """The hello comes before any frame that the function sends meanwhile."""
        with self._sending:
            self._agent = newest
            kept = [one for one in self._outgoing if one[1]]
            self._outgoing.clear()
            self._offset = 0
            self._append(
                Hello(protocol=PROTOCOL, pid=os.getpid(), calls=self.desk.held(), models=self.models())
            )
            self._outgoing.extend(kept)

    def _receive(self, agent: socket.socket) -> None:
        try:
            data = agent.recv(_READ_BYTES)
            if not data:
                self._drop_agent()
            for frame in self._decoder.feed(data):
                self.desk.receive(frame)
        except BlockingIOError:
            return
        except (OSError, FrameError) as error:
            self._output.pass_on(2, f"dgpu: the connection of the agent was closed: {error}\n".encode())
            self._drop_agent()

    def _drop_agent(self) -> None:
        agent, self._agent = self._agent, None
        if agent is not None:
            self._poll.unregister(agent)
            agent.close()

    def _account(self, sent: int) -> None:
        left = sent + self._offset
        while self._outgoing and left >= len(self._outgoing[0][0]):
            body, is_output = self._outgoing.popleft()
            left -= len(body)
            if is_output:
                self._unread_output -= len(body)
        self._offset = left

    def _beat(self) -> None:
        now = time.monotonic()
        if self._agent is not None and now >= self._next_beat:
            self._next_beat = now + self._heartbeat_seconds
            self.send(Beat(at=time.time()))

    def _follow_output(self) -> None:
        reads = self._unread_output < MAX_UNREAD_OUTPUT
        if reads == self._reads_output:
            return
        self._reads_output = reads
        for fd in self._output.readers:
            if reads:
                self._poll.register(fd, select.POLLIN)
            else:
                self._poll.unregister(fd)

    def _wait_to_write(self, waits: bool) -> None:
        if self._agent is not None and waits != self._waits_to_write:
            self._waits_to_write = waits
            self._poll.modify(self._agent, select.POLLIN | (select.POLLOUT if waits else 0))


def _listen(path: str) -> socket.socket:
    pathlib.Path(path).unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o077)
    try:
        listener.bind(path)
    finally:
        os.umask(before)
    listener.listen(4)
    listener.setblocking(False)
    return listener


def _peer_uid(peer: socket.socket) -> int:
    _, uid, _ = struct.unpack(
        "3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    )
    return int(uid)
