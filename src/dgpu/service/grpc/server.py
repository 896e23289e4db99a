"""The gRPC server for agents: converts bytes to messages and back. All decisions belong to the scheduler machine.

Handlers are generic: they need the generated messages, but no generated stubs.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import grpc
import structlog

from dgpu.core.model.ids import NodeId
from dgpu.service.audit.agents import Action, AgentAudit
from dgpu.service.grpc.content import Hello, NoContent, content_pieces, put_content, transfer_methods
from dgpu.service.grpc.copies import Admit
from dgpu.service.grpc.handshakes import Handshakes
from dgpu.service.grpc.links import Link
from dgpu.service.grpc.methods import stream_method
from dgpu.service.grpc.peers import address_of, end_of, is_our_user, is_ours
from dgpu.service.grpc.sweep import Sweep, Swept
from dgpu.service.loop.runtime import Runtime
from dgpu.service.machine.fences import is_current
from dgpu.service.machines.caller import Caller, Refused
from dgpu.service.open_files import AgentConnections
from dgpu.service.task_channels import ChannelStreams
from dgpu.service.task_files import FileStreams
from dgpu.service.task_output.streams import OutputStreams
from dgpu.wire.address import Address
from dgpu.wire.proto import agent_pb2 as pb

if TYPE_CHECKING:
    from dgpu.service.machines.gate import Gate  # imports cryptography, which plain schedulers do without

SERVICE = "dgpu.agent.v1.Agents"
MAX_MESSAGE_BYTES = 16 << 20
MAX_STREAMS = 20_000
MAX_STREAMS_PER_CONNECTION = 10_000  # simulated nodes of one agent share a connection
SWEEP_SECONDS = 2.0
JOIN_LOOK_SECONDS = 1.0
BUSY_SWEEP_SECONDS = 0.05  # while connections of other users keep coming
_STOP_S = 1.0
_HEAR_S = 2.0
_LOG_EVERY_SECONDS = 10.0
_OTHER_NODE = "not_your_node"
_CERTIFICATE = "certificate_refused"

# A peer that disappeared silently is noticed after about 20 s, by pings even on an idle connection.
_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 4_000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.max_concurrent_streams", MAX_STREAMS_PER_CONNECTION),
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.max_connection_idle_ms", 60_000),  # without a stream; agents always have one
    ("grpc.so_reuseport", 0),  # a second scheduler on the same port must fail instead of sharing it
]

_log = structlog.get_logger("dgpu.grpc")
_Context = grpc.aio.ServicerContext[Any, Any]


class _Live(NamedTuple):
    peer: str  # as gRPC names it
    join_id: str  # of its certificate; empty: it has none


class AgentServer:
    def __init__(
        self,
        runtime: Runtime,
        output: OutputStreams,
        files: FileStreams | None = None,
        channels: ChannelStreams | None = None,
        *,
        trusts_all: bool = False,
        counts: AgentConnections | None = None,
        gate: Gate | None = None,
        audit: AgentAudit | None = None,
    ) -> None:
        """With a gate, agents need certificates. Without one, only this machine's own users are let in."""
        self._runtime = runtime
        self._output = output
        self._files = files or FileStreams()
        self._channels = channels or ChannelStreams()
        self._files.is_connected = lambda node_id: bool(runtime.session_of(node_id))
        self._channels.is_connected = self._files.is_connected
        self._trusts_all = trusts_all
        self._address = Address(host="", port=0)
        self._gate = gate
        self._audit = audit
        self._handshakes = Handshakes(self._tell_handshake)
        self._live: dict[Link[Any], _Live] = {}
        self._counts = AgentConnections() if counts is None else counts
        self._next_log_s = 0.0
        self._watching: list[asyncio.Task[None]] = []
        options = [*_OPTIONS, ("grpc.max_allowed_incoming_connections", self._counts.max)]
        self._server = grpc.aio.server(options=options, maximum_concurrent_rpcs=MAX_STREAMS)
        methods = grpc.method_handlers_generic_handler(SERVICE, self._methods())
        self._server.add_generic_rpc_handlers((methods,))

    def _methods(self) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        return {
            "Connect": stream_method(self._connect, pb.FromAgent),
            "Output": stream_method(self._output_stream, pb.FromAgentOutput),
            "Files": stream_method(self._file_stream, pb.FromAgentFiles),
            **transfer_methods(self._content, self._put_content),
            "Channels": stream_method(self._channel_stream, pb.FromAgentChannels),
            "Renew": grpc.unary_unary_rpc_method_handler(
                self._renew,
                request_deserializer=pb.RenewRequest.FromString,
                response_serializer=pb.Renewed.SerializeToString,
            ),
        }

    def give(self, methods: Callable[[Admit], grpc.GenericRpcHandler]) -> None:
        """Other schedulers may call these. Call it before `start`."""
        self._server.add_generic_rpc_handlers((methods(self._admit_scheduler),))

    async def start(self, host: str, port: int) -> int:
        """Returns the port. Raises OSError if it is not available."""
        address = str(Address(host=host or "::", port=port))
        try:
            if self._gate is None:
                bound = self._server.add_insecure_port(address)
            else:
                bound = self._server.add_secure_port(address, self._gate.credentials)
        except RuntimeError as error:
            raise OSError(f"cannot listen on {address} for agents: {error}") from error
        self._address = Address(host=host, port=bound)
        await self._server.start()
        self._watching = [asyncio.ensure_future(self._sweep(bound))]
        if self._gate is not None:
            self._watching.append(asyncio.ensure_future(self._watch_joins(self._gate)))
            self._handshakes.start(bound)
        return bound

    async def stop(self) -> None:
        """Agents are told that the stop is intended; they reconnect."""
        for link in tuple(self._live):
            link.hang_up("the scheduler is stopping", fault=False)
        for watching in self._watching:
            watching.cancel()
        self._handshakes.stop()
        await self._server.stop(_STOP_S)

    async def _sweep(self, port: int) -> None:
        sweep = Sweep(
            port,
            self._counts.max,
            lambda ours, theirs: not (self._is_open_to_all or is_our_user(ours, theirs)),
        )
        while True:
            live = {end for live in self._live.values() if (end := end_of(live.peer)) is not None}
            try:
                swept = await asyncio.to_thread(sweep.look, live)
            except OSError as error:  # no file descriptor is left for the check: the next check may get one
                _log.warning("agent_connections_unseen", error=error.strerror)
                swept = Swept(self._counts.open, 0)
            self._counts.open = swept.open
            if swept.closed:
                self._counts.closed += swept.closed
                self._tell_closed(swept)
            await asyncio.sleep(BUSY_SWEEP_SECONDS if swept.closed else SWEEP_SECONDS)

    async def _watch_joins(self, gate: Gate) -> None:
        """Ends the streams of machines that were revoked, or did not renew their certificate."""
        while True:
            await asyncio.sleep(JOIN_LOOK_SECONDS)
            fallen = await gate.fallen({live.join_id for live in self._live.values()})
            for link, live in tuple(self._live.items()):
                if why := fallen.get(live.join_id):
                    _log.warning("agent_cut", peer=live.peer, join=live.join_id, reason=why)
                    link.refuse(why)

    @property
    def _is_open_to_all(self) -> bool:
        """Any address and user may connect: certificates tell them apart, or nothing does."""
        return self._trusts_all or self._gate is not None

    def _tell_closed(self, swept: Swept) -> None:
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._next_log_s:
            self._next_log_s = now_s + _LOG_EVERY_SECONDS
            _log.warning("agent_connections_closed", open=swept.open, closed=self._counts.closed)

    async def _connect(self, _requests: object, context: _Context) -> None:
        caller = await self._caller(context)
        link: Link[pb.FromScheduler] = Link(context)
        connection_id = self._runtime.connect_agent(link)

        def on_message(message: pb.FromAgent) -> None:
            # Later messages carry no node: the machine ties them to the node of this Register.
            is_register = message.WhichOneof("body") == "register"
            if is_register and (why := caller.why_not_for(message.register.node_id)):
                self._tell_refused(context, why, _OTHER_NODE, message.register.node_id)
                link.refuse(why)
                return
            self._runtime.agent_said(connection_id, message)

        def on_end() -> None:
            self._runtime.agent_left(connection_id)

        await self._serve(context, caller, link, on_message, on_end)

    async def _output_stream(self, _requests: object, context: _Context) -> None:
        caller = await self._caller(context)
        link: Link[pb.FromSchedulerOutput] = Link(context)
        hello = await context.read()
        if not isinstance(hello, pb.FromAgentOutput) or hello.WhichOneof("body") != "hello":
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the first message must be OutputHello")
        if why := caller.why_not_for(hello.hello.node_id):
            await self._refuse(context, why, _OTHER_NODE, hello.hello.node_id)
        stream = self._output.attach(NodeId(hello.hello.node_id), hello.hello.session_id, link)

        def on_message(message: pb.FromAgentOutput) -> None:
            if message.WhichOneof("body") != "chunk":
                link.hang_up("only OutputChunk may follow OutputHello", fault=True)
                return
            self._output.on_chunk(stream, message.chunk)

        await self._serve(context, caller, link, on_message, lambda: self._output.detach(stream))

    async def _file_stream(self, _requests: object, context: _Context) -> None:
        caller = await self._caller(context)
        link: Link[pb.FromSchedulerFiles] = Link(context)
        hello = await context.read()
        if not isinstance(hello, pb.FromAgentFiles) or hello.WhichOneof("body") != "hello":
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the first message must be FilesHello")
        node_id = await self._registered(context, caller, hello.hello)
        stream = self._files.attach(node_id, link.send)

        def on_message(message: pb.FromAgentFiles) -> None:
            if message.WhichOneof("body") != "answer":
                link.hang_up("only FileAnswer may follow FilesHello", fault=True)
                return
            self._files.on_answer(stream, message.answer)

        await self._serve(context, caller, link, on_message, lambda: self._files.detach(stream))

    async def _content(self, request: pb.ContentRequest, context: _Context) -> AsyncIterator[pb.ContentPiece]:
        caller = await self._caller(context, hears=False)
        await self._registered(context, caller, request)
        try:
            async for piece in content_pieces(self._runtime, self._files.content, request):
                yield piece
        except NoContent as error:
            await context.abort(grpc.StatusCode.NOT_FOUND, str(error))

    async def _put_content(self, puts: AsyncIterator[pb.ContentPut], context: _Context) -> pb.ContentPutDone:
        caller = await self._caller(context, hears=False)
        first = await anext(puts, pb.ContentPut())
        await self._registered(context, caller, first)
        try:
            return pb.ContentPutDone(size=await put_content(self._runtime, self._files.content, first, puts))
        except NoContent as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))

    async def _channel_stream(self, _requests: object, context: _Context) -> None:
        caller = await self._caller(context)
        link: Link[pb.FromSchedulerChannels] = Link(context)
        hello = await context.read()
        if not isinstance(hello, pb.FromAgentChannels) or hello.WhichOneof("body") != "hello":
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the first message must be ChannelsHello")
        stream = self._channels.attach(await self._registered(context, caller, hello.hello), link.send)

        def on_message(message: pb.FromAgentChannels) -> None:
            if message.WhichOneof("body") != "message":
                link.hang_up("only ChannelMessage may follow ChannelsHello", fault=True)
                return
            self._channels.on_message(stream, message.message)

        await self._serve(context, caller, link, on_message, lambda: self._channels.detach(stream))

    async def _registered(self, context: _Context, caller: Caller, hello: Hello) -> NodeId:
        """The node of a stream that belongs to a session of this scheduler. Any other stream is refused."""
        node_id = NodeId(hello.node_id)
        if why := caller.why_not_for(node_id):
            await self._refuse(context, why, _OTHER_NODE, node_id)
        if not is_current(hello.session_id, self._runtime.session_of(node_id)):
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION, "no node is registered here with this session"
            )
        return node_id

    async def _renew(self, request: pb.RenewRequest, context: _Context) -> pb.Renewed:
        self._handshakes.passed(context.peer())
        if self._gate is None:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION, "this scheduler gives out no certificates"
            )
        try:
            certificate = await self._gate.renew(context, request.csr)
        except Refused as refused:
            await self._refuse(context, str(refused), _CERTIFICATE, action="agent.renew")
        names = self._gate.names_of(context)
        if self._audit is not None and names is not None:
            self._audit.done("agent.renew", address_of(context.peer()), names)
        return pb.Renewed(certificate=certificate)

    async def _caller(self, context: _Context, *, hears: bool = True) -> Caller:
        """A caller without rights is refused. `hears`: the call has a stream of requests."""
        self._handshakes.passed(context.peer())
        if self._gate is not None:
            try:
                return await self._gate.caller(context)
            except Refused as refused:
                if hears:
                    await _hear_once(context)
                await self._refuse(context, str(refused), _CERTIFICATE)
        if not (self._trusts_all or is_ours(context.peer(), self._address)):
            why = "only agents of the scheduler's own user or of root may connect"
            await self._refuse(context, why, "not_our_user")
        return Caller()

    async def _admit_scheduler(self, context: _Context) -> None:
        self._handshakes.passed(context.peer())
        if self._gate is None:
            is_known = self._trusts_all or is_ours(context.peer(), self._address)
        else:
            is_known = self._gate.is_scheduler(context)
        if not is_known:
            await self._refuse(context, "only schedulers of this cluster may call this", "not_a_scheduler")

    async def _refuse(
        self, context: _Context, why: str, code: str, node_id: str = "", *, action: Action = "agent.connect"
    ) -> NoReturn:
        self._tell_refused(context, why, code, node_id, action=action)
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, why)
        raise AssertionError("abort raises")

    def _tell_refused(
        self, context: _Context, why: str, code: str, node_id: str = "", *, action: Action = "agent.connect"
    ) -> None:
        _log.warning("stranger_refused", peer=context.peer(), reason=why)
        if self._audit is not None:
            names = None if self._gate is None else self._gate.names_of(context)
            self._audit.refused(action, code, address_of(context.peer()), names=names, subject=node_id)

    def _tell_handshake(self, address: str) -> None:
        if self._audit is not None:
            self._audit.refused("agent.connect", "tls_refused", address)

    async def _serve(
        self,
        context: _Context,
        caller: Caller,
        link: Link[Any],
        on_message: Callable[[Any], None],
        on_end: Callable[[], None],
    ) -> None:
        """Reads in a separate asyncio task while the link writes; the end of either ends both."""
        reading = asyncio.ensure_future(_read(context, link, on_message))
        self._live[link] = _Live(context.peer(), caller.join_id)
        try:
            await link.run()
        finally:
            reading.cancel()
            self._live.pop(link, None)
            on_end()


async def _hear_once(context: _Context) -> None:
    """A refusal that crosses the first message of the caller would reach it as an internal error without a reason."""
    with contextlib.suppress(grpc.RpcError, TimeoutError):
        async with asyncio.timeout(_HEAR_S):
            await context.read()


async def _read(context: _Context, link: Link[Any], on_message: Callable[[Any], None]) -> None:
    try:
        # AbortError: the scheduler hung up intentionally.
        with contextlib.suppress(grpc.RpcError, grpc.aio.AbortError):
            while (message := await context.read()) is not grpc.aio.EOF:
                if message is None:
                    link.hang_up("a message could not be decoded", fault=True)
                    return
                on_message(message)
        link.cut()
    except Exception:  # noqa: BLE001 - a bug in one agent's message ends only that agent's stream
        _log.exception("agent_message_failed")
        link.hang_up("the scheduler hit a bug", fault=False)
