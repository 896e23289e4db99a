"""The socket between the keeper and the process that holds terminals. Neither end blocks. Standard library only.

Frames of the keeper: `open` [{id, lease, task, terminal, fds}], with so many descriptors for each: the terminal and the
pipe of the task's output; or the terminal of a command; or its input, output and errors. `refused` [[id, reason,
detail]]; `finish` [[id, exit_code, error]]: no process writes any more.
Frames to the keeper: `run` [{id, lease, node, argv, env, size}]; `hang_up` [id]; `drained` [id].
A session of a task has the lease as its id, a command has an id below zero.
"""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Sequence

from dgpu.agent.frames import Decoder, Frame, encode

MAX_DESCRIPTORS = 3  # per frame
_READ_BYTES = 256 * 1024


class LinkGone(Exception):  # noqa: N818 - a fact about the peer
    pass


class TerminalLink:
    def __init__(self, link: socket.socket, epoll: select.epoll) -> None:
        link.setblocking(False)
        self._link = link
        self._epoll = epoll
        self._epoll.register(link, select.EPOLLIN)
        self._decoder = Decoder()
        self._unsent: list[tuple[bytes, list[int]]] = []
        self._is_watching_room = False
        self.descriptors: list[int] = []  # received with frames that are not served yet

    def fileno(self) -> int:
        return self._link.fileno()

    def send(self, frame: Frame, descriptors: Sequence[int] = ()) -> None:
        """Takes over the descriptors. Raises LinkGone."""
        self._unsent.append((encode(frame), list(descriptors)))
        self._push()

    def serve(self, mask: int) -> list[Frame]:
        """Raises LinkGone."""
        if mask & select.EPOLLOUT:
            self._push()
        if not mask & ~select.EPOLLOUT:
            return []
        try:
            received, descriptors, _, _ = socket.recv_fds(self._link, _READ_BYTES, MAX_DESCRIPTORS)
        except BlockingIOError:
            return []
        except OSError as error:
            raise LinkGone from error
        self.descriptors += descriptors
        if not received:
            raise LinkGone
        return self._decoder.feed(received)

    def close(self) -> None:
        self._epoll.unregister(self._link)
        self._link.close()
        for _, descriptors in self._unsent:
            close_all(descriptors)
        self._unsent.clear()

    def _push(self) -> None:
        try:
            while self._unsent:
                body, descriptors = self._unsent[0]
                sent = socket.send_fds(self._link, [body], descriptors)
                close_all(descriptors)
                if sent < len(body):
                    self._unsent[0] = (body[sent:], [])
                else:
                    self._unsent.pop(0)
        except BlockingIOError:
            pass
        except OSError as error:
            raise LinkGone from error
        if bool(self._unsent) != self._is_watching_room:
            self._is_watching_room = bool(self._unsent)
            wanted = select.EPOLLIN | (select.EPOLLOUT if self._is_watching_room else 0)
            self._epoll.modify(self._link, wanted)


def close_all(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
