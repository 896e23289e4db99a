"""The node's end of one channel: its windows, its input, its close. Subclasses connect it to a program."""

from __future__ import annotations

import abc
import asyncio
from collections.abc import Callable
from typing import Any

import structlog

from dgpu.wire.proto import agent_pb2 as pb

WINDOW_BYTES = 256 * 1024
MAX_PIECE_BYTES = 32 * 1024

_log = structlog.get_logger("dgpu.agent")

Send = Callable[[pb.ChannelMessage], None]


class ChannelEnd(abc.ABC):
    def __init__(self, channel_id: int, credit: int, send: Send) -> None:
        self._id = channel_id
        self._tell = send
        self._credit = credit
        self._has_credit = asyncio.Event()
        self._waiting_bytes = 0  # input that the program has not taken
        self._is_closed = False
        self.task = asyncio.get_running_loop().create_task(self._run())

    # From the scheduler

    def take(self, given: bytes) -> None:
        self._waiting_bytes += len(given)
        if self._waiting_bytes > WINDOW_BYTES:
            detail = "the scheduler sent more than its credit"
            self._send(closed=pb.ChannelClosed(reason="lost", detail=detail))
            self.close()
            return
        self._put(given)

    @abc.abstractmethod
    def _put(self, given: bytes) -> None:
        """Input, to be passed on."""

    @abc.abstractmethod
    def end_input(self) -> None: ...

    def resize(self, size: pb.TerminalSize) -> None:  # noqa: B027 - only a terminal has a size
        pass

    def credit(self, count: int) -> None:
        self._credit += count
        self._has_credit.set()

    def close(self) -> None:
        self._is_closed = True
        self.task.cancel()

    # To the scheduler

    async def _run(self) -> None:
        closed = pb.ChannelClosed(reason="lost", detail="the connection on the node has ended")
        try:
            closed = await self._serve() or closed
        except OSError:
            pass
        except Exception as error:  # noqa: BLE001 - one channel must not end the others
            _log.exception("channel_failed")
            closed.detail = type(error).__name__
        self._send(closed=closed)
        self._is_closed = True

    @abc.abstractmethod
    async def _serve(self) -> pb.ChannelClosed | None:
        """Until the program's side has ended, and why. None or OSError: it was lost."""

    def _opened(self) -> None:
        self._send(opened=pb.ChannelOpened(credit=WINDOW_BYTES))

    async def _give(self, data: bytes, *, is_error_output: bool = False) -> None:
        """Waits for credit."""
        while data:
            while not self._credit:
                self._has_credit.clear()
                await self._has_credit.wait()
            piece = data[: min(self._credit, MAX_PIECE_BYTES)]
            data = data[len(piece) :]
            self._credit -= len(piece)
            self._send(data=pb.ChannelData(data=piece, is_error_output=is_error_output))

    def _taken(self, count: int) -> None:
        """The program took so many bytes of input."""
        self._waiting_bytes -= count
        self._send(credit=pb.ChannelCredit(bytes=count))

    def _send(self, **what: Any) -> None:
        if not self._is_closed:
            self._tell(pb.ChannelMessage(channel_id=self._id, **what))
