"""Channels of bytes between the scheduler and runs of a node: terminals, commands, ports.

Both directions are bounded: the scheduler sends no more than it has credit for, and this side gives new credit when the
program has taken its input. Output is read only with credit of the scheduler.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

from dgpu.agent import terminal_frames as frames
from dgpu.agent.channel_end import ChannelEnd, Send
from dgpu.agent.keeper_link import connect
from dgpu.agent.port_channel import PortChannel, RunPorts
from dgpu.core.model.ids import NodeId
from dgpu.wire.proto import agent_pb2 as pb

MAX_CHANNELS = 512  # of one node
_READ_BYTES = 64 * 1024


class ChannelServer:
    """Serves one stream, whose end closes its channels. `send` takes messages."""

    def __init__(self, directory: Path, node_id: NodeId, send: Send, ports: RunPorts) -> None:
        self._directory = directory
        self._ports = ports
        self._node_id = node_id
        self._send = send
        self._channels: dict[int, ChannelEnd] = {}

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
        channel: ChannelEnd
        if asked.WhichOneof("to") == "port":
            channel = PortChannel(channel_id, asked, self._node_id, self._send, self._ports)
        else:
            opening = _opening(asked, self._node_id)
            channel = TerminalChannel(channel_id, opening, asked.credit, self._directory, self._send)
        self._channels[channel_id] = channel
        channel.task.add_done_callback(lambda _: self._channels.pop(channel_id, None))


def _opening(asked: pb.OpenChannel, node_id: NodeId) -> dict[str, Any]:
    opening: dict[str, Any] = {"lease": asked.lease_id, "node": node_id}
    if asked.HasField("size"):
        opening["size"] = [asked.size.rows, asked.size.columns]
    if asked.WhichOneof("to") == "command":
        opening |= {"argv": list(asked.command.argv), "env": dict(asked.command.env)}
    return opening


class TerminalChannel(ChannelEnd):
    """A connection to the process that holds terminals."""

    def __init__(
        self, channel_id: int, opening: dict[str, Any], credit: int, directory: Path, send: Send
    ) -> None:
        self._opening = opening
        self._directory = directory
        self._input: asyncio.Queue[bytes] = asyncio.Queue()
        super().__init__(channel_id, credit, send)

    def _put(self, given: bytes) -> None:
        self._input.put_nowait(frames.encode(frames.DATA, given))

    def resize(self, size: pb.TerminalSize) -> None:
        self._input.put_nowait(frames.encode_json(frames.SIZE, [size.rows, size.columns]))

    def end_input(self) -> None:
        self._input.put_nowait(frames.encode(frames.END))

    async def _serve(self) -> pb.ChannelClosed | None:
        lost = pb.ChannelClosed(reason="lost", detail="the node's process for terminals has ended")
        try:
            link = await asyncio.to_thread(connect, self._directory, frames.SOCKET_NAME)
            link.setblocking(False)
            reader, writer = await asyncio.open_unix_connection(sock=link)
        except OSError:
            return lost
        writer.write(frames.encode_json(frames.OPEN, self._opening))
        writing = asyncio.get_running_loop().create_task(self._write(writer))
        decoder = frames.FrameDecoder()
        try:
            while received := await reader.read(_READ_BYTES):
                for kind, body in decoder.feed(received):
                    if kind == frames.CLOSED:
                        return pb.ChannelClosed(**json.loads(body))
                    if kind == frames.OPENED:
                        self._opened()
                    else:
                        await self._give(body, is_error_output=kind == frames.ERRORS)
        except OSError:
            return lost
        finally:
            writing.cancel()
            writer.close()
        return lost

    async def _write(self, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):  # the reader notices
            while True:
                frame = await self._input.get()
                writer.write(frame)
                await writer.drain()
                if frame.startswith(frames.DATA):
                    self._taken(len(frame) - len(frames.encode(frames.DATA)))
