"""The pipes through which tasks write, into their files. Standard library only."""

from __future__ import annotations

import os
import select

from dgpu.agent.held import Held

_READ_BYTES = 64 * 1024
_MOST_LAST_READS = 16  # of a pipe after its tree has ended


class Pipes:
    def __init__(self, epoll: select.epoll) -> None:
        self._epoll = epoll
        self._readers: dict[int, Held] = {}

    def open(self, held: Held) -> None:
        self._readers[held.output_fd] = held
        self._epoll.register(held.output_fd, select.EPOLLIN)

    def serve(self, fd: int) -> bool:
        """Whether it is one of the pipes."""
        held = self._readers.get(fd)
        if held is None:
            return False
        self._read(held)
        return True

    def close(self, held: Held) -> None:
        """Takes what is left. A process that got away with the pipe and writes on is not waited for."""
        for _ in range(_MOST_LAST_READS):
            if held.output_fd < 0 or not self._read(held):
                break
        self._hang_up(held)
        held.output.close()

    def _read(self, held: Held) -> bool:
        try:
            output = os.read(held.output_fd, _READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            output = b""
        if not output:
            self._hang_up(held)
            return False
        held.output.append(output)
        return True

    def _hang_up(self, held: Held) -> None:
        if held.output_fd >= 0:
            self._epoll.unregister(held.output_fd)
            del self._readers[held.output_fd]
            os.close(held.output_fd)
            held.output_fd = -1
