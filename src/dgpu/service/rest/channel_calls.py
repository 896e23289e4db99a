"""Channels to running tasks: terminals, commands inside runs, ports. The bytes go over a WebSocket."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Annotated, Any, NamedTuple

import msgspec
from litestar import Request, get, post
from litestar.params import PathParameter
from litestar.types import ASGIApp

from dgpu.core.model.ids import LeaseId, NodeId, TaskId, task_name
from dgpu.core.model.task import Task, TaskDetail, TaskStatus
from dgpu.core.state import ClusterState
from dgpu.service.access.principal import Principal
from dgpu.service.rest import listing
from dgpu.service.rest.backend import Backend, ProblemError
from dgpu.service.rest.channel_offers import PortOffer
from dgpu.service.rest.open_streams import OpenStream
from dgpu.service.rest.origins import problem, wrong_origin
from dgpu.service.rest.tasks import Given, Opener, TaskIdText, Who
from dgpu.service.rest.websocket_end import WebSocketEnd
from dgpu.service.task_channels import Channel, ChannelRefused, Piece
from dgpu.wire.answers import Problem
from dgpu.wire.channel_answers import (
    ERRORS,
    MAX_MESSAGE_BYTES,
    PING_SECONDS,
    SILENT_SECONDS,
    STANDARD,
    SUBPROTOCOL,
    FromClient,
    OpenedChannel,
    ToClient,
)
from dgpu.wire.channel_requests import ChannelRequest, decode_channel
from dgpu.wire.proto import agent_pb2 as pb
from dgpu.wire.ranks import attempt_of
from dgpu.wire.websocket import Kind, accept_of

ChannelId = Annotated[str, PathParameter(description="channel_id of the answer to POST …/channels.")]

_decode_detail = msgspec.json.Decoder(TaskDetail).decode
_decode_word = msgspec.json.Decoder(FromClient).decode


class _Run(NamedTuple):
    lease_id: LeaseId
    node_id: NodeId
    attempt: int


@post(
    "/api/v1/tasks/{task_id:str}/channels",
    summary="Attach to a task, run a command in it, or reach a port of it",
    description="Without `command`: attaches to the terminal of a task that was submitted with `terminal`. A new "
    "client replaces the last one. With `command` (a string for the shell, or a list): runs it on the task's node, "
    "with the task's variables, GPUs, directory and user; it ends with the task or with its client. `size`: [rows, "
    "columns] of a terminal. With `port`: connections to a TCP port of the task. The answer names a channel; connect "
    "to it within 30 s, to a port any number of times. 409 if the task does not run.",
    status_code=201,
)
async def open_channel(
    rest: Given, who: Who, task_id: TaskIdText, request: Request[Any, Any, Any]
) -> OpenedChannel:
    number = listing.task_id_of(task_id)
    asked = decode_channel(await request.body())
    run = await _run_of(rest, who, number, asked)
    if asked.port is not None:
        channel_id = rest.offers.add_port(PortOffer(number, asked.port, asked.rank), who)
        return _answer(channel_id, number, run)
    if rest.offers.is_full:
        raise ProblemError(
            problem(
                503,
                "too_many_channels",
                "Too many channels",
                "Too many channels wait for their clients. Try again soon.",
            )
        )
    try:
        channel = await rest.channels.open(run.node_id, _opening(run, asked))
    except ChannelRefused as error:
        raise _refused(error, number, run.node_id) from None
    return _answer(rest.offers.add(channel, who), number, run)


def _answer(channel_id: str, task_id: TaskId, run: _Run) -> OpenedChannel:
    return OpenedChannel(
        channel_id=channel_id,
        path=f"/api/v1/channels/{channel_id}",
        task_id=task_name(task_id),
        node=run.node_id,
        attempt=run.attempt,
    )


async def _run_of(rest: Backend, who: Principal, number: TaskId, asked: ChannelRequest) -> _Run:
    run = await rest.runtime.read(lambda state: _find_run(state, number, asked))
    if isinstance(run, Problem):
        raise ProblemError(run)
    if run is None:
        await listing.find_task(rest, who, number)  # raises unless it has ended and is forgotten
        raise ProblemError(_not_running(number, "has ended"))
    return run


async def _claim(rest: Backend, who: Principal, channel_id: str) -> Channel:
    """The channel that waits, or a new one to a port."""
    if (port := rest.offers.port(channel_id, who)) is not None:
        run = await _run_of(rest, who, port.task_id, ChannelRequest(port=port.port, rank=port.rank))
        asked = pb.OpenChannel(lease_id=run.lease_id, port=pb.ConnectPort(port=port.port))
        try:
            return await rest.channels.open(run.node_id, asked)
        except ChannelRefused as error:
            raise _refused(error, port.task_id, run.node_id) from None
    channel = rest.offers.claim(channel_id, who)
    if channel is None:
        raise ProblemError(
            problem(
                404,
                "unknown_channel",
                "No such channel",
                "No such channel waits for a client. Open another one.",
            )
        )
    return channel


@get(
    "/api/v1/channels/{channel_id:str}",
    summary="Connect to a channel",
    description=f"A WebSocket with the subprotocol {SUBPROTOCOL}, once for each channel. Binary messages are input and "
    "output after one byte: 0 for standard input and output, 1 for standard error. Text messages are JSON: the client "
    'sends {"size": [rows, columns]} and {"end": true} (no more input), the last message of the server is '
    '{"closed": reason, "detail": …, "exit_code": …}.',
    media_type="application/octet-stream",
)
async def connect_channel(
    rest: Given, who: Who, opener: Opener, request: Request[Any, Any, Any], channel_id: ChannelId
) -> ASGIApp:
    headers = request.headers
    key, switch = headers.get("sec-websocket-key", ""), request.scope["state"].get("switch")
    if headers.get("upgrade", "").lower() != "websocket" or not key or switch is None:
        raise ProblemError(
            problem(
                426, "websocket_needed", "A WebSocket", "This call is a WebSocket: send Upgrade: websocket."
            )
        )
    if (foreign := wrong_origin(dict(request.scope["headers"]))) is not None:
        raise ProblemError(foreign)
    channel = await _claim(rest, who, channel_id)
    try:
        opened = opener()
    except BaseException:
        channel.close()
        raise

    async def app(_scope: Any, _receive: Any, _send: Any) -> None:
        head = _switching(key, names_protocol=SUBPROTOCOL in headers.get("sec-websocket-protocol", ""))
        ends: list[WebSocketEnd] = []

        def make(on_end: Any) -> WebSocketEnd:
            ends.append(WebSocketEnd(on_end, max_message_bytes=MAX_MESSAGE_BYTES))
            return ends[0]

        transport = switch(head, make)
        ends[0].transport = transport
        await _serve(channel, ends[0], opened)

    return app


def _switching(key: str, *, names_protocol: bool) -> bytes:
    lines = [
        b"HTTP/1.1 101 Switching Protocols",
        b"Upgrade: websocket",
        b"Connection: Upgrade",
        b"Sec-WebSocket-Accept: " + accept_of(key.encode("latin-1", "replace")),
    ]
    if names_protocol:
        lines.append(b"Sec-WebSocket-Protocol: " + SUBPROTOCOL.encode())
    return b"\r\n".join([*lines, b"", b""])


async def _serve(channel: Channel, end: WebSocketEnd, opened: OpenStream) -> None:
    """Until the run closes the channel, or the client leaves."""
    work = [asyncio.ensure_future(part(channel, end)) for part in (_upward, _downward)]
    work.append(asyncio.ensure_future(_ping(end)))
    try:
        await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for part in work:
            part.cancel()
        channel.close()
        end.close()
        opened.close()


async def _upward(channel: Channel, end: WebSocketEnd) -> None:
    with contextlib.suppress(TimeoutError, msgspec.MsgspecError):
        while True:
            async with asyncio.timeout(SILENT_SECONDS):
                message = await end.receive()
            if message is None:
                return
            if message.kind is Kind.BINARY:
                await channel.send(message.body[1:])
            elif message.kind is Kind.TEXT:
                _on_word(channel, _decode_word(message.body))


def _on_word(channel: Channel, word: FromClient) -> None:
    if word.size is not None:
        rows, columns = (max(1, min(each, 10_000)) for each in word.size)
        channel.resize(rows, columns)
    if word.end:
        channel.end_input()


async def _downward(channel: Channel, end: WebSocketEnd) -> None:
    while isinstance(piece := await channel.receive(), Piece):
        await end.send(Kind.BINARY, (ERRORS if piece.is_error_output else STANDARD) + piece.data)
    last = ToClient(closed=piece.reason, detail=piece.detail, exit_code=piece.exit_code)
    await end.send(Kind.TEXT, msgspec.json.encode(last))


async def _ping(end: WebSocketEnd) -> None:
    while True:
        await asyncio.sleep(PING_SECONDS)
        await end.send(Kind.PING, b"")


def _find_run(state: ClusterState, task_id: TaskId, asked: ChannelRequest) -> _Run | Problem | None:
    """None: the state does not know the task."""
    task = state.tasks.get(task_id)
    if task is None:
        return None
    if task.status is TaskStatus.PENDING:
        return _not_started(task_id, f"waits; see: dgpu why {task_name(task_id)}")
    if task.status is not TaskStatus.RUNNING:
        return _not_running(task_id, f"has ended ({task.status.value})")
    if task.allocation:
        return _not_running(task_id, "is an allocation and runs nothing")
    if asked.command is None and asked.port is None and not _decode_detail(task.detail).terminal:
        return _no_terminal(task_id)
    return _lease_of(state, task, asked.rank)


def _lease_of(state: ClusterState, task: Task, rank: int) -> _Run | Problem:
    leases = state.leases_of(task)
    name, last_rank = task_name(task.id), len(leases) - 1
    if rank > last_rank:
        ranks = f"the ranks 0 to {last_rank}" if last_rank else "only rank 0"
        return Problem(
            status=404,
            code="unknown_rank",
            title="No such rank",
            detail=f"{name} has {ranks}.",
            facts={"task_id": name, "last_rank": last_rank},
        )
    lease = state.leases[leases[rank]]
    if lease.ended:
        return _not_running(task.id, f"has ended on rank {rank}")
    if not lease.started:
        return _not_started(task.id, "is being started")
    return _Run(lease.id, lease.node_id, attempt_of(task.attempt))


def _opening(run: _Run, asked: ChannelRequest) -> pb.OpenChannel:
    size = None if asked.size is None else pb.TerminalSize(rows=asked.size[0], columns=asked.size[1])
    if asked.command is None:
        size = size or pb.TerminalSize(rows=24, columns=80)
        return pb.OpenChannel(lease_id=run.lease_id, size=size, terminal=pb.AttachTerminal())
    command = pb.RunCommand(argv=asked.command, env=asked.env)
    return pb.OpenChannel(lease_id=run.lease_id, size=size, command=command)


_BUSY = frozenset({"node_unreachable", "node_busy", "node_silent", "node_fault"})
_CODES = {"lost": "node_unreachable", "run_starting": "run_not_started", "run_ended": "not_running"}


def _refused(error: ChannelRefused, task_id: TaskId, node_id: NodeId) -> ProblemError:
    if error.code == "no_terminal":
        return ProblemError(_no_terminal(task_id))
    code = _CODES.get(error.code, error.code)
    is_busy = code in _BUSY
    refused = Problem(
        status=503 if is_busy else 409,
        code=code,
        title="No channel",
        detail=f"{task_name(task_id)}: {error}.",
        facts={"task_id": task_name(task_id), "node": node_id, "why": str(error)},
    )
    return ProblemError(refused, {"retry-after": "1"} if is_busy else None)


def _no_terminal(task_id: TaskId) -> Problem:
    name = task_name(task_id)
    detail = (
        f"{name} was not started with a terminal. Submit it with terminal: true (dgpu run -it), or open a shell beside "
        f"it: dgpu exec -it {name} -- bash."
    )
    facts = {"task_id": name}
    return Problem(status=409, code="no_terminal", title="No terminal", detail=detail, facts=facts)


def _not_running(task_id: TaskId, why: str) -> Problem:
    detail = f"{task_name(task_id)} {why}."
    facts = {"task_id": task_name(task_id)}
    return Problem(status=409, code="not_running", title="Not running", detail=detail, facts=facts)


def _not_started(task_id: TaskId, why: str) -> Problem:
    detail = f"{task_name(task_id)} {why}."
    facts = {"task_id": task_name(task_id)}
    return Problem(status=409, code="run_not_started", title="Not started", detail=detail, facts=facts)


ROUTES: tuple[Any, ...] = (open_channel, connect_channel)
