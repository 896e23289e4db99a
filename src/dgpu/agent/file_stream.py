"""The gRPC stream for files of tasks: open while the main stream is, and reopened when it breaks."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from dgpu.agent.accounts import Accounts
from dgpu.agent.file_server import FileServer, file_threads
from dgpu.agent.kept_open import kept_open
from dgpu.agent.run_meter import RunMeter
from dgpu.agent.upload_cache import UploadCache
from dgpu.core.model.ids import NodeId
from dgpu.wire.proto import agent_pb2 as pb

FILES = "/dgpu.agent.v1.Agents/Files"


class FilesDesk:
    """The directories of an agent and the threads that read there; shared by its nodes. `uploads`: the other way."""

    def __init__(self, work_dir: Path | None, accounts: Accounts, uploads: UploadCache) -> None:
        self.uploads = uploads
        self._work_dir = work_dir
        self._accounts = accounts
        self._threads = file_threads()

    def open(
        self, channel: grpc.aio.Channel, node_id: NodeId, session_id: str, meter: RunMeter
    ) -> FileStream | None:
        """None: tasks of this agent run nothing, so simulated nodes need no stream for files."""
        if self._work_dir is None:
            return None

        def make_server(send: Callable[[pb.FromAgentFiles], None]) -> FileServer:
            return FileServer(self._work_dir, self._accounts, self._threads, send, meter)

        return FileStream(channel, node_id, session_id, make_server)


MakeServer = Callable[[Callable[[pb.FromAgentFiles], None]], FileServer]


class FileStream:
    def __init__(
        self, channel: grpc.aio.Channel, node_id: NodeId, session_id: str, make_server: MakeServer
    ) -> None:
        self._channel = channel
        self._hello = pb.FromAgentFiles(hello=pb.FilesHello(node_id=node_id, session_id=session_id))
        self._make_server = make_server
        self._task = asyncio.get_running_loop().create_task(kept_open(self._one_call))

    def close(self) -> None:
        self._task.cancel()

    async def _one_call(self) -> None:
        method = self._channel.stream_stream(
            FILES,
            request_serializer=pb.FromAgentFiles.SerializeToString,
            response_deserializer=pb.FromSchedulerFiles.FromString,
        )
        call: Any = method()
        # Bounded by the scheduler, which sends few requests at a time, and by the number of threads.
        answers: asyncio.Queue[pb.FromAgentFiles] = asyncio.Queue()
        server = self._make_server(answers.put_nowait)
        writing = asyncio.get_running_loop().create_task(self._write(call, answers))
        try:
            while (message := await call.read()) is not grpc.aio.EOF:
                if message.WhichOneof("body") == "request":
                    server.on_request(message.request)
        finally:
            server.close()
            writing.cancel()
            call.cancel()

    async def _write(self, call: Any, answers: asyncio.Queue[pb.FromAgentFiles]) -> None:
        with contextlib.suppress(grpc.RpcError, asyncio.InvalidStateError):  # the reader reports the reason
            await call.write(self._hello)
            while True:
                await call.write(await answers.get())
