"""Copies the pipes of tasks into their files. Standard library only."""

from __future__ import annotations

import os
import select

from dgpu.agent.chunks import ChunkWriter
from dgpu.agent.store import Record

_READ_BYTES = 64 * 1024
_MAX_LAST_READS = 16  # per pipe after its tree has ended


class _Pipe:
    __slots__ = ("descriptor", "output")

    def __init__(self, descriptor: int, output: ChunkWriter) -> None:
        self.descriptor = descriptor  # -1: every writer has closed it
        self.output = output


class Pipes:
    def __init__(self, epoll: select.epoll) -> None:
        self._epoll = epoll
        self._by_descriptor: dict[int, _Pipe] = {}
        self._by_lease: dict[int, _Pipe] = {}

    def open(self, lease: int, descriptor: int, output: ChunkWriter) -> None:
        """Takes over the non-blocking reading end of a pipe."""
        pipe = _Pipe(descriptor, output)
        self._by_descriptor[descriptor] = self._by_lease[lease] = pipe
        self._epoll.register(descriptor, select.EPOLLIN)

    def serve(self, descriptor: int) -> None:
        """One read. Does nothing for a pipe that was closed meanwhile."""
        if (pipe := self._by_descriptor.get(descriptor)) is not None:
            self._read(pipe)

    def close(self, lease: int) -> Record:
        """Reads the rest and returns its size. It does not wait for an escaped process that still writes."""
        pipe = self._by_lease.pop(lease, None)
        if pipe is None:
            return {}
        for _ in range(_MAX_LAST_READS):
            if pipe.descriptor < 0 or not self._read(pipe):
                break
        self._hang_up(pipe)
        pipe.output.close()
        told: Record = {"output_bytes": pipe.output.total_bytes}
        if pipe.output.dropped_bytes:
            told["output_lost"] = pipe.output.dropped_bytes
        return told

    def _read(self, pipe: _Pipe) -> bool:
        try:
            output = os.read(pipe.descriptor, _READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            output = b""
        if not output:
            self._hang_up(pipe)
            return False
        pipe.output.append(output)
        return True

    def _hang_up(self, pipe: _Pipe) -> None:
        if pipe.descriptor >= 0:
            self._epoll.unregister(pipe.descriptor)
            del self._by_descriptor[pipe.descriptor]
            os.close(pipe.descriptor)
            pipe.descriptor = -1
