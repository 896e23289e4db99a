"""Copies the pipes of tasks into their files. Standard library only."""

from __future__ import annotations

import contextlib
import os
import select

from dgpu.agent.chunks import ChunkWriter
from dgpu.agent.marks import STDOUT
from dgpu.agent.output_files import Copies
from dgpu.agent.store import Record

_READ_BYTES = 64 * 1024
_MAX_LAST_READS = 16  # per pipe after its tree has ended


class _Pipe:
    __slots__ = ("copies", "descriptor", "output", "stream")

    def __init__(self, descriptor: int, output: ChunkWriter, stream: int, copies: Copies | None) -> None:
        self.descriptor = descriptor  # -1: every writer has closed it
        self.output = output
        self.stream = stream
        self.copies = copies


class Pipes:
    """One or two of each run: stderr may have its own. Both go into one output. The system tells which pipe was filled
    first, so lines keep their order, unless a task writes to both faster than this process reads.
    """

    def __init__(self, epoll: select.epoll) -> None:
        self._epoll = epoll
        self._by_descriptor: dict[int, _Pipe] = {}
        self._by_lease: dict[int, list[_Pipe]] = {}
        self._copies: dict[int, Copies] = {}
        self._paused: list[_Pipe] = []  # their files cannot follow
        self._free = -1  # becomes readable when a file can follow again

    def output_of(self, lease: int) -> ChunkWriter | None:
        pipes = self._by_lease.get(lease)
        return pipes[0].output if pipes else None

    def open_files(self, lease: int, link: int) -> None:
        """Before its pipes. Takes over the socket."""
        if self._free < 0:
            self._free = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            self._epoll.register(self._free, select.EPOLLIN)
        self._copies[lease] = Copies(link, lambda: os.eventfd_write(self._free, 1))

    def open(self, lease: int, descriptor: int, output: ChunkWriter, stream: int = STDOUT) -> None:
        """Takes over the non-blocking reading end of a pipe."""
        pipe = self._by_descriptor[descriptor] = _Pipe(descriptor, output, stream, self._copies.get(lease))
        self._by_lease.setdefault(lease, []).append(pipe)
        self._epoll.register(descriptor, select.EPOLLIN)

    def serve(self, descriptor: int) -> None:
        """One read. Does nothing for a pipe that was closed meanwhile."""
        if descriptor == self._free:
            self._resume()
        elif (pipe := self._by_descriptor.get(descriptor)) is not None:
            self._read(pipe)
            if pipe.copies is not None and pipe.copies.is_full and pipe.descriptor >= 0:
                self._epoll.unregister(pipe.descriptor)
                self._paused.append(pipe)

    def close(self, lease: int) -> Record:
        """Reads the rest and returns its size. It does not wait for an escaped process that still writes."""
        pipes = self._by_lease.pop(lease, None)
        copies = self._copies.pop(lease, None)
        if not pipes:
            if copies is not None:
                copies.close()
            return {}
        for pipe in pipes:
            for _ in range(_MAX_LAST_READS):
                if pipe.descriptor < 0 or not self._read(pipe):
                    break
            self._hang_up(pipe)
        output = pipes[0].output
        if copies is not None:
            copies.close()
            output.append(copies.note())
        output.close()
        told: Record = {"output_bytes": output.total_bytes}
        if output.dropped_bytes:
            told["output_lost"] = output.dropped_bytes
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
        pipe.output.append(output, pipe.stream)
        if pipe.copies is not None:
            pipe.copies.append(output, pipe.stream)
            pipe.output.append(pipe.copies.note(), pipe.stream)
        return True

    def _resume(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._free)
        paused, self._paused = self._paused, []
        for pipe in paused:
            if pipe.descriptor >= 0:
                self._epoll.register(pipe.descriptor, select.EPOLLIN)

    def _hang_up(self, pipe: _Pipe) -> None:
        if pipe.descriptor >= 0:
            if pipe in self._paused:
                self._paused.remove(pipe)
            else:
                self._epoll.unregister(pipe.descriptor)
            del self._by_descriptor[pipe.descriptor]
            os.close(pipe.descriptor)
            pipe.descriptor = -1
