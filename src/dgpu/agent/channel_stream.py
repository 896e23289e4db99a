"""The gRPC stream for channels to runs: open while the main stream is, and reopened when it breaks."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from dgpu.agent.channel_server import ChannelServer
from dgpu.agent.kept_open import kept_open
from dgpu.agent.options import AgentOptions
from dgpu.agent.port_channel import RunPorts
from dgpu.core.model.ids import NodeId
from dgpu.wire.proto import agent_pb2 as pb

CHANNELS = "/dgpu.agent.v1.Agents/Channels"


def open_channels(
    options: AgentOptions, channel: grpc.aio.Channel, node_id: NodeId, session_id: str, ports: RunPorts
) -> ChannelStream | None:
    """None: tasks of this agent run nothing."""
    if options.runner != "process":
        return None
    return ChannelStream(channel, node_id, session_id, options.state_dir, ports)


class ChannelStream:
    """`directory`: of the keeper, with the socket of the process that holds terminals."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        node_id: NodeId,
        session_id: str,
        directory: Path,
        ports: RunPorts,
    ) -> None:
        self._channel = channel
        self._ports = ports
        self._node_id = node_id
        self._hello = pb.FromAgentChannels(hello=pb.ChannelsHello(node_id=node_id, session_id=session_id))
        self._directory = directory
        self._task = asyncio.get_running_loop().create_task(kept_open(self._one_call))

    def close(self) -> None:
        self._task.cancel()

    async def _one_call(self) -> None:
        method = self._channel.stream_stream(
            CHANNELS,
            request_serializer=pb.FromAgentChannels.SerializeToString,
            response_deserializer=pb.FromSchedulerChannels.FromString,
        )
        call: Any = method()
        # Bounded by the windows of the channels and by their number.
        outgoing: asyncio.Queue[pb.ChannelMessage] = asyncio.Queue()
        server = ChannelServer(self._directory, self._node_id, outgoing.put_nowait, self._ports)
        writing = asyncio.get_running_loop().create_task(self._write(call, outgoing))
        try:
            while (message := await call.read()) is not grpc.aio.EOF:
                if message.WhichOneof("body") == "message":
                    server.on_message(message.message)
        finally:
            server.close()
            writing.cancel()
            call.cancel()

    async def _write(self, call: Any, outgoing: asyncio.Queue[pb.ChannelMessage]) -> None:
        with contextlib.suppress(grpc.RpcError, asyncio.InvalidStateError):  # the reader reports the reason
            await call.write(self._hello)
            while True:
                await call.write(pb.FromAgentChannels(message=await outgoing.get()))
