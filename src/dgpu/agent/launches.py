"""Children that may hang before their program starts, and their results. Standard library only."""

from __future__ import annotations

import os
import select

from dgpu.agent.held import Held
from dgpu.agent.spawn import CannotStart
from dgpu.agent.spawn_apart import read_status


class Launches:
    def __init__(self, epoll: select.epoll) -> None:
        self._epoll = epoll
        self._by_fd: dict[int, Held] = {}

    def open(self, held: Held, status_fd: int) -> None:
        held.status_fd = status_fd
        self._by_fd[status_fd] = held
        self._epoll.register(status_fd, select.EPOLLIN)

    def find(self, fd: int) -> Held | None:
        return self._by_fd.get(fd)

    def has_started(self, held: Held) -> bool:
        """Called when its pipe is readable, and at its end. A failure is stored in `held`."""
        told = read_status(held.status_fd)
        if told is None:
            return False
        if isinstance(told, CannotStart):
            held.failure = told
        self.close(held)
        return held.failure is None

    def close(self, held: Held) -> None:
        if held.status_fd >= 0:
            self._epoll.unregister(held.status_fd)
            del self._by_fd[held.status_fd]
            os.close(held.status_fd)
            held.status_fd = -1
