"""A scheduler that sends only the messages of a test, over real gRPC, and records the messages it gets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Self

import grpc
import grpc.aio
import msgspec

from dgpu.core.model.task import TaskDetail
from dgpu.wire.proto import agent_pb2 as pb

PATIENCE_SECONDS = 60.0


async def until(what: Callable[[], Any]) -> Any:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not (found := what()):  # noqa: ASYNC110 - what is waited for happens in other processes
            await asyncio.sleep(0.01)
    return found


def start(
    lease: int,
    command: str,
    *,
    gpus: tuple[str, ...] = (),
    timeout_ms: int = 0,
    nonce: str = "",
    **detail: Any,
) -> pb.Start:
    return pb.Start(
        lease_id=lease,
        task_id=100 + lease,
        attempt=1,
        gpu_uuids=gpus,
        detail=msgspec.json.encode(TaskDetail(command=command, **detail)),
        timeout_ms=timeout_ms,
        nonce=nonce,
    )


class ScriptedScheduler:
    def __init__(
        self,
        *,
        epoch: int = 1,
        lease_ms: int = 3_600_000,
        action: str = "freeze",
        cluster_id: str = "",
        nonce: str = "",
        is_standby: bool = False,
    ) -> None:
        self.is_standby = is_standby
        self.epoch = epoch
        self.cluster_id = cluster_id
        self.nonce = nonce
        self.lease_ms = lease_ms
        self.action = action
        self.acks = True
        self.give_up: set[int] = set()
        self.registrations: list[pb.Register] = []
        self.heartbeats: list[pb.Heartbeat] = []
        self.inventories: list[pb.Inventory] = []
        self.started: dict[int, pb.Started] = {}
        self.finished: dict[int, list[pb.Finished]] = {}
        self.returned: dict[int, list[pb.Returned]] = {}
        self.workers: dict[int, pb.WorkerState] = {}  # the newest of each
        self.progress: dict[int, pb.Progress] = {}
        self.contents: dict[str, bytes] = {}  # by sha256, for arguments
        self.put: dict[str, bytes] = {}  # the same, of results
        self.chunks: dict[int, list[pb.OutputChunk]] = {}  # by lease, of those to be kept
        self.answers: dict[int, list[pb.OutputChunk]] = {}  # by request
        self.stores = True
        self._link: Any = None
        self._output: Any = None
        self.port = 0
        self._writing = asyncio.Lock()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> None:
        self._server = grpc.aio.server()
        methods = {
            "Connect": grpc.stream_stream_rpc_method_handler(
                self._connect,
                request_deserializer=pb.FromAgent.FromString,
                response_serializer=pb.FromScheduler.SerializeToString,
            ),
            "Output": grpc.stream_stream_rpc_method_handler(
                self._on_output,
                request_deserializer=pb.FromAgentOutput.FromString,
                response_serializer=pb.FromSchedulerOutput.SerializeToString,
            ),
            "Content": grpc.unary_stream_rpc_method_handler(
                self._on_content,
                request_deserializer=pb.ContentRequest.FromString,
                response_serializer=pb.ContentPiece.SerializeToString,
            ),
            "PutContent": grpc.stream_unary_rpc_method_handler(
                self._on_put,
                request_deserializer=pb.ContentPut.FromString,
                response_serializer=pb.ContentPutDone.SerializeToString,
            ),
        }
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("dgpu.agent.v1.Agents", methods),)
        )
        self.port = self._server.add_insecure_port(f"127.0.0.1:{self.port}")
        await self._server.start()

    async def close(self) -> None:
        self._link = self._output = None
        await self._server.stop(0)

    async def say(self, message: pb.FromScheduler) -> None:
        await until(lambda: self._link is not None)
        await self._write(self._link, message)

    async def _write(self, link: Any, message: pb.FromScheduler) -> None:
        """A stream takes one write at a time."""
        async with self._writing:
            await link.write(message)

    async def order(
        self, *starts: pb.Start, stops: tuple[int, ...] = (), calls: Sequence[pb.Call] = ()
    ) -> None:
        stopping = [pb.Stop(lease_id=lease, reason="cancelled") for lease in stops]
        await self.say(pb.FromScheduler(orders=pb.Orders(starts=starts, stops=stopping, calls=calls)))

    async def fetch(self, request: int, lease: int, **facts: Any) -> None:
        await until(lambda: self._output is not None)
        fetch = pb.Fetch(request_id=request, lease_id=lease, **facts)
        await self._output.write(pb.FromSchedulerOutput(fetch=fetch))

    async def _connect(self, requests: Any, context: Any) -> None:
        async for message in requests:
            kind = message.WhichOneof("body")
            if kind == "register":
                self._link = None  # orders wait for this welcome: the stream before may be dead
                self.registrations.append(message.register)
                if self.is_standby:
                    refused = pb.Refused(reason="this scheduler is a standby")
                    await self._write(context, pb.FromScheduler(refused=refused))
                    return
                await self._write(context, pb.FromScheduler(welcome=self._welcome(message.register)))
                self._link = context
            elif kind == "heartbeat":
                self.heartbeats.append(message.heartbeat)
                ack = pb.HeartbeatAck(seq=message.heartbeat.seq)
                await self._write(context, pb.FromScheduler(heartbeat_ack=ack))
            elif kind == "inventory":
                self.inventories.append(message.inventory)
            elif kind == "workers":
                self.workers.update({each.lease_id: each for each in message.workers.states})
                self.progress.update({each.lease_id: each for each in message.workers.progress})
            elif kind == "reports":
                self.started.update({each.lease_id: each for each in message.reports.started})
                for each in message.reports.finished:
                    self.finished.setdefault(each.lease_id, []).append(each)
                for each in message.reports.returned:
                    self.returned.setdefault(each.lease_id, []).append(each)
                if self.acks:
                    ack = pb.ReportsAck(seq=message.reports.seq)
                    await self._write(context, pb.FromScheduler(reports_ack=ack))

    def _welcome(self, register: pb.Register) -> pb.Welcome:
        return pb.Welcome(
            epoch=self.epoch,
            cluster_id=self.cluster_id,
            nonce=self.nonce,
            task_lease_ms=self.lease_ms,
            lease_action=self.action,
            heartbeat_timeout_ms=15_000,
            keep=[lease.lease_id for lease in register.leases if lease.lease_id not in self.give_up],
        )

    async def _on_content(self, request: Any, _context: Any) -> AsyncIterator[pb.ContentPiece]:
        """The only one that it has, whichever lease asks."""
        (content,) = self.contents.values()
        yield pb.ContentPiece(size=len(content), data=content[request.offset :])

    async def _on_put(self, requests: Any, _context: Any) -> pb.ContentPutDone:
        digest, content = "", b""
        async for message in requests:
            digest = digest or message.sha256
            content += message.data
        self.put[digest] = content
        return pb.ContentPutDone(size=len(content))

    async def _on_output(self, requests: Any, context: Any) -> None:
        async for message in requests:
            if message.WhichOneof("body") == "hello":
                await context.write(pb.FromSchedulerOutput(credit=pb.Credit(bytes=256 * 1024)))
                self._output = context
                continue
            chunk = message.chunk
            if chunk.request_id:
                self.answers.setdefault(chunk.request_id, []).append(chunk)
            else:
                self.chunks.setdefault(chunk.lease_id, []).append(chunk)
            if chunk.data:
                await context.write(pb.FromSchedulerOutput(credit=pb.Credit(bytes=len(chunk.data))))
            if chunk.last and not chunk.request_id and self.stores:
                stored = pb.Stored(lease_id=chunk.lease_id)
                await context.write(pb.FromSchedulerOutput(stored=stored))
