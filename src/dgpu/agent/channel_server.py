"""Channels of bytes between the scheduler and runs of a node. Each is a connection to the process that holds terminals.

Both directions are bounded: the scheduler sends no more than it has credit for, and this side gives new credit when the
program has taken its input. Output is read only with credit of the scheduler.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import structlog

from dgpu.agent import terminal_frames as frames
from dgpu.agent.keeper_link import connect
from dgpu.core.model.ids import NodeId
from dgpu.wire.proto import agent_pb2 as pb

MAX_CHANNELS = 64  # of one node
WINDOW_BYTES = 256 * 1024
_READ_BYTES = 64 * 1024

_log = structlog.get_logger("dgpu.agent")

Send = Callable[[pb.ChannelMessage], None]


class ChannelServer:
    """Serves one stream, whose end closes its channels. `send` takes messages."""

    def __init__(self, directory: Path, node_id: NodeId, send: Send) -> None:
        self._directory = directory
        self._node_id = node_id
        self._send = send
        self._channels: dict[int, _Channel] = {}

    def on_message(self, message: pb.ChannelMessage) -> None:
        channel = self._channels.get(message.channel_id)
        match message.WhichOneof("what"):
            case "open" if channel is None:
                self._open(message.channel_id, message.open)
            case "data" if channel is not None:
                channel.take(message.data.data)
            case "credit" if channel is not None:
                channel.credit(message.credit.bytes)
            case "size" if channel is not None:
                channel.resize(message.size)
            case "end" if channel is not None:
                channel.end_input()
            case "closed" if channel is not None:
                channel.close()
            case _:
                pass  # of a channel that has ended meanwhile

    def close(self) -> None:
        for channel in self._channels.values():
            channel.close()

    def _open(self, channel_id: int, asked: pb.OpenChannel) -> None:
        if len(self._channels) >= MAX_CHANNELS:
            detail = f"{MAX_CHANNELS} channels of this node are open"
            closed = pb.ChannelClosed(reason="too_many_channels", detail=detail)
            self._send(pb.ChannelMessage(channel_id=channel_id, closed=closed))
            return
        opening = _opening(asked, self._node_id)
        channel = _Channel(channel_id, opening, asked.credit, self._directory, self._send)
        self._channels[channel_id] = channel
        channel.task.add_done_callback(lambda _: self._channels.pop(channel_id, None))


def _opening(asked: pb.OpenChannel, node_id: NodeId) -> dict[str, Any]:
    opening: dict[str, Any] = {"lease": asked.lease_id, "node": node_id}
    if asked.HasField("size"):
        opening["size"] = [asked.size.rows, asked.size.columns]
    if asked.WhichOneof("to") == "command":
        opening |= {"argv": list(asked.command.argv), "env": dict(asked.command.env)}
    return opening


class _Channel:
    def __init__(
        self, channel_id: int, opening: dict[str, Any], credit: int, directory: Path, send: Send
    ) -> None:
        self._id = channel_id
        self._opening = opening
        self._directory = directory
        self._tell = send
        self._credit = credit
        self._has_credit = asyncio.Event()
        self._input: asyncio.Queue[bytes] = asyncio.Queue()
        self._waiting_bytes = 0  # input that the program has not taken
        self._is_closed = False
        self.task = asyncio.get_running_loop().create_task(self._run())

    def take(self, given: bytes) -> None:
        self._waiting_bytes += len(given)
        if self._waiting_bytes > WINDOW_BYTES:
            self._send(
                closed=pb.ChannelClosed(reason="lost", detail="the scheduler sent more than its credit")
            )
            self.close()
            return
        self._input.put_nowait(frames.encode(frames.DATA, given))

    def resize(self, size: pb.TerminalSize) -> None:
        self._input.put_nowait(frames.encode_json(frames.SIZE, [size.rows, size.columns]))

    def end_input(self) -> None:
        self._input.put_nowait(frames.encode(frames.END))

    def credit(self, count: int) -> None:
        self._credit += count
        self._has_credit.set()

    def close(self) -> None:
        self._is_closed = True
        self.task.cancel()

    async def _run(self) -> None:
        closed = pb.ChannelClosed(reason="lost", detail="the node's process for terminals has ended")
        try:
            closed = await self._serve() or closed
        except OSError:
            pass
        except Exception as error:  # noqa: BLE001 - one channel must not end the others
            _log.exception("channel_failed")
            closed.detail = type(error).__name__
        self._send(closed=closed)
        self._is_closed = True

    async def _serve(self) -> pb.ChannelClosed | None:
        link = await asyncio.to_thread(connect, self._directory, frames.SOCKET_NAME)
        link.setblocking(False)
        reader, writer = await asyncio.open_unix_connection(sock=link)
        writer.write(frames.encode_json(frames.OPEN, self._opening))
        writing = asyncio.get_running_loop().create_task(self._write(writer))
        decoder = frames.FrameDecoder()
        try:
            while received := await reader.read(_READ_BYTES):
                for kind, body in decoder.feed(received):
                    if kind == frames.CLOSED:
                        return pb.ChannelClosed(**json.loads(body))
                    await self._pass_on(kind, body)
        finally:
            writing.cancel()
            writer.close()
        return None

    async def _pass_on(self, kind: bytes, body: bytes) -> None:
        if kind == frames.OPENED:
            self._send(opened=pb.ChannelOpened(credit=WINDOW_BYTES))
            return
        while body:
            while not self._credit:
                self._has_credit.clear()
                await self._has_credit.wait()
            piece = body[: min(self._credit, frames.MAX_DATA_BYTES)]
            body = body[len(piece) :]
            self._credit -= len(piece)
            self._send(data=pb.ChannelData(data=piece, is_error_output=kind == frames.ERRORS))

    async def _write(self, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):  # the reader notices
            while True:
                frame = await self._input.get()
                writer.write(frame)
                await writer.drain()
                if frame.startswith(frames.DATA):
                    taken = len(frame) - len(frames.encode(frames.DATA))
                    self._waiting_bytes -= taken
                    self._send(credit=pb.ChannelCredit(bytes=taken))

    def _send(self, **what: Any) -> None:
        if not self._is_closed:
            self._tell(pb.ChannelMessage(channel_id=self._id, **what))
