"""The keeper's end of the socket to its scribe. Never blocks. Standard library only.

Frames to the scribe, at most one per round: `output` [[lease, stream]], with the reading end of a pipe for each, and
before them a socket that brings files (`output_files`), if any; `end` [[lease, end, reusable]]; `forget` [lease];
`begin` [record] with `dirs` [[lease, name, tmp_name, owner, staged]] of runs that need one (an empty name: not this
one; `staged`: a directory that gets the name, empty: a new one) and `secrets` [[lease, {name: base64}, owner]] and
`workers` [[lease, owner]] of runs that need a directory for a socket; `ping` number. Within a frame they are served in
this order.
Frames from it: `recorded` [[lease, end]]; `begun` {dirs, secrets: [[lease, path, error]]}, {full} or {error}; `pong`
number.
"""

from __future__ import annotations

import os
import select
import socket

from dgpu.agent.frames import Decoder, Frame, encode
from dgpu.agent.marks import FILES, STDERR, STDOUT
from dgpu.agent.store import Record

MAX_DESCRIPTORS = 128  # per message; the kernel's limit is 253
_READ_BYTES = 256 * 1024
_STALLED_MS = 4_000  # without an answer


class ScribeGone(Exception):  # noqa: N818 - a fact about the peer
    """The guard ends this keeper too."""


class ScribeLink:
    def __init__(self, link: socket.socket, epoll: select.epoll) -> None:
        link.setblocking(False)
        self._link = link
        self._epoll = epoll
        self._epoll.register(link, select.EPOLLIN)
        self._decoder = Decoder()
        self._frame: Frame = {}
        self._outputs: list[int] = []  # descriptors of this frame
        self._unsent: list[tuple[bytes, list[int]]] = []
        self._is_watching_room = False
        self._asked_ms: list[int] = []  # when each frame without an answer was sent

    def fileno(self) -> int:
        return self._link.fileno()

    def is_stalled(self, now_ms: int) -> bool:
        """Whether the scribe waits for the disk."""
        return bool(self._asked_ms) and now_ms - self._asked_ms[0] >= _STALLED_MS

    # -- collected until `flush`

    def output(self, lease: int, descriptor: int, errors: int = -1, files: int = -1) -> None:
        """Takes over the descriptors. `errors`: of stderr; -1: it shares the pipe of stdout. `files`: -1: none."""
        for stream, each in ((FILES, files), (STDOUT, descriptor), (STDERR, errors)):
            if each >= 0:
                self._frame.setdefault("output", []).append([lease, stream])
                self._outputs.append(each)

    def end(self, lease: int, end: Record, *, reusable: bool) -> None:
        self._frame.setdefault("end", []).append([lease, end, reusable])

    def forget(self, leases: list[int]) -> None:
        self._frame.setdefault("forget", []).extend(leases)

    def begin(self, records: list[Record], asked: Frame) -> None:
        """`asked`: dirs, secrets and workers, as above."""
        self._frame |= {"begin": records, **asked}

    def ping(self, number: int) -> None:
        """Sent unless another answer is pending."""
        if not self._asked_ms:
            self._frame["ping"] = number

    def flush(self, now_ms: int) -> None:
        if not self._frame:
            return
        if self._frame.keys() & {"end", "begin", "ping"}:
            self._asked_ms.append(now_ms)
        self._unsent.append((encode(self._frame), self._outputs))
        self._frame, self._outputs = {}, []
        self._push()

    def serve(self, mask: int) -> list[Frame]:
        """Answers. Raises ScribeGone."""
        if mask & select.EPOLLOUT:
            self._push()
        if not mask & ~select.EPOLLOUT:
            return []
        try:
            received = self._link.recv(_READ_BYTES)
        except BlockingIOError:
            return []
        except OSError as error:
            raise ScribeGone from error
        if not received:
            raise ScribeGone
        frames = self._decoder.feed(received)
        del self._asked_ms[: len(frames)]
        return frames

    def _push(self) -> None:
        try:
            while self._unsent:
                body, descriptors = self._unsent[0]
                sent = socket.send_fds(self._link, [body], descriptors)
                for descriptor in descriptors:
                    os.close(descriptor)
                if sent < len(body):
                    self._unsent[0] = (body[sent:], [])
                else:
                    self._unsent.pop(0)
        except BlockingIOError:
            pass
        except OSError as error:
            raise ScribeGone from error
        if bool(self._unsent) != self._is_watching_room:
            self._is_watching_room = bool(self._unsent)
            self._epoll.modify(
                self._link, select.EPOLLIN | (select.EPOLLOUT if self._is_watching_room else 0)
            )
