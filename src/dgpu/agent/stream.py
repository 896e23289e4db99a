"""The two gRPC streams of a node, as bytes in and out. No decisions."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio

from dgpu.agent.channel import OpenChannel, open_plain
from dgpu.wire.proto import agent_pb2 as pb

CONNECT = "/dgpu.agent.v1.Agents/Connect"
OUTPUT = "/dgpu.agent.v1.Agents/Output"
_REOPEN_SECONDS = 2.0
_REASON_SECONDS = 1.0
_NO_METHOD = "/dgpu.agent.v1.Agents/None"  # a scheduler that can be reached after all only refuses it


class MainStream:
    """One call to one scheduler. Each callback stops once the stream is closed; `on_end` is called at most once."""

    def __init__(
        self,
        address: str,
        *,
        open_channel: OpenChannel = open_plain,
        on_open: Callable[[], None],
        on_message: Callable[[pb.FromScheduler], None],
        on_written: Callable[[], None],
        on_end: Callable[[str], None],
    ) -> None:
        self._address = address
        self._on_open = on_open
        self._on_message = on_message
        self._on_written = on_written
        self._on_end = on_end
        self._outgoing: asyncio.Queue[pb.FromAgent] = asyncio.Queue()
        self._closed = False
        self.channel = open_channel(address)
        self._call: Any = None
        self._tasks = [asyncio.get_running_loop().create_task(self._run())]

    def send(self, message: pb.FromAgent) -> None:
        self._outgoing.put_nowait(message)

    def close(self) -> None:
        """Without a word to the callbacks."""
        if self._closed:
            return
        self._closed = True
        if self._call is not None:
            self._call.cancel()
        for task in self._tasks:
            task.cancel()
        self._tasks.append(asyncio.get_running_loop().create_task(self.channel.close()))

    async def _run(self) -> None:
        reason = "the scheduler ended the stream"
        try:
            await self._reach()
            method = self.channel.stream_stream(
                CONNECT,
                request_serializer=pb.FromAgent.SerializeToString,
                response_deserializer=pb.FromScheduler.FromString,
            )
            self._call = method()
            self._tasks.append(asyncio.get_running_loop().create_task(self._write()))
            self._on_open()
            while (message := await self._call.read()) is not grpc.aio.EOF:
                if self._closed:
                    return
                self._on_message(message)
        except grpc.RpcError as error:
            reason = _reason(error)
        except ConnectionError as error:
            reason = str(error)
        self._finish(reason)

    async def _reach(self) -> None:
        """One attempt: when and whether to try again is the session's decision."""
        while True:
            state = self.channel.get_state(try_to_connect=True)
            if state is grpc.ChannelConnectivity.READY:
                return
            if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
                raise ConnectionError(f"{self._address} cannot be reached{await self._why_unreachable()}")
            if state is grpc.ChannelConnectivity.SHUTDOWN:
                raise ConnectionError(f"{self._address} cannot be reached")
            await self.channel.wait_for_state_change(state)

    async def _why_unreachable(self) -> str:
        """Only a call tells why a connection failed: refused, or a certificate that is not accepted."""
        call: Any = self.channel.unary_unary(_NO_METHOD)
        try:
            await call(b"", timeout=_REASON_SECONDS)
        except grpc.aio.AioRpcError as error:
            _, _, reason = (error.details() or "").rpartition(" last error: ")
            return f": {reason}" if reason else ""
        return ""

    async def _write(self) -> None:
        with contextlib.suppress(grpc.RpcError, asyncio.InvalidStateError):  # the reader tells why
            while True:
                message = await self._outgoing.get()
                if message.HasField("heartbeat"):
                    message.heartbeat.wall_ms = time.time_ns() // 1_000_000
                await self._call.write(message)
                if not self._closed:
                    self._on_written()

    def _finish(self, reason: str) -> None:
        if not self._closed:
            self.close()
            self._on_end(reason)


class OutputStream:
    """One output call after the other, while the main stream lives. `on_message` gets the scheduler's messages.

    `send` takes one message at a time; `on_taken` signals that the next one may be sent.
    """

    def __init__(
        self,
        channel: grpc.aio.Channel,
        *,
        on_open: Callable[[], None],
        on_message: Callable[[pb.FromSchedulerOutput], None],
        on_taken: Callable[[], None],
        on_end: Callable[[], None],
    ) -> None:
        self._channel = channel
        self._on_open = on_open
        self._on_message = on_message
        self._on_taken = on_taken
        self._on_end = on_end
        self._outgoing: asyncio.Queue[pb.FromAgentOutput] = asyncio.Queue()
        self._closed = False
        self._task = asyncio.get_running_loop().create_task(self._run())

    def send(self, message: pb.FromAgentOutput) -> None:
        self._outgoing.put_nowait(message)

    def close(self) -> None:
        """Without a word to the callbacks."""
        self._closed = True
        self._task.cancel()

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(grpc.RpcError, asyncio.InvalidStateError):
                await self._one_call()
            if not self._closed:
                self._on_end()
            await asyncio.sleep(_REOPEN_SECONDS)

    async def _one_call(self) -> None:
        method = self._channel.stream_stream(
            OUTPUT,
            request_serializer=pb.FromAgentOutput.SerializeToString,
            response_deserializer=pb.FromSchedulerOutput.FromString,
        )
        call: Any = method()
        self._outgoing = asyncio.Queue()
        self._on_open()
        writing = asyncio.get_running_loop().create_task(self._write(call))
        try:
            while (message := await call.read()) is not grpc.aio.EOF:
                if self._closed:
                    return
                self._on_message(message)
        finally:
            writing.cancel()
            call.cancel()

    async def _write(self, call: Any) -> None:
        with contextlib.suppress(grpc.RpcError, asyncio.InvalidStateError):  # the reader notices
            while True:
                await call.write(await self._outgoing.get())
                if not self._closed:
                    self._on_taken()


def _reason(error: grpc.RpcError) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name.lower()}: {error.details()}"
    return str(error)
