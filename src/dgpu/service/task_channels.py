"""Channels of bytes to runs on nodes: terminals of tasks, commands inside runs. Each agent has a stream for them.

Each side of a channel sends no more bytes than it has credit for, so a slow client costs one window of memory here and
stops only its own program. Nothing is stored.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from dgpu.core.model.ids import NodeId
from dgpu.wire.proto import agent_pb2 as pb

WINDOW_BYTES = 256 * 1024
MAX_PIECE_BYTES = 64 * 1024
OPEN_S = 30.0
ATTACH_S = 5.0
MAX_CHANNELS = 512  # of one node

Send = Callable[[pb.FromSchedulerChannels], None]


class ChannelRefused(Exception):  # noqa: N818 - the name states the failure
    """`code`: a reason of the agent, or node_unreachable, node_busy, node_silent."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code


class Piece(NamedTuple):
    data: bytes
    is_error_output: bool


class Closed(NamedTuple):
    reason: str  # see agent.proto
    detail: str = ""
    exit_code: int = 0


class Channel:
    """One open channel. The holder calls `close` exactly when it does not use it any more."""

    def __init__(self, channel_id: int, node_id: NodeId, send: Callable[[pb.ChannelMessage], None]) -> None:
        self.id = channel_id
        self.node_id = node_id
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.closed: Closed | None = None
        self._tell = send
        self._pieces: deque[Piece] = deque()
        self._unread_bytes = 0  # received and not taken, of the window
        self._credit = 0
        self._changed = asyncio.Event()

    # For the holder

    @property
    def is_quiet(self) -> bool:
        """Open, and nothing was received that the holder has not taken."""
        return self.closed is None and not self._pieces

    async def receive(self) -> Piece | Closed:
        """The next piece; after the last one, why the channel has ended."""
        while not self._pieces:
            if self.closed is not None:
                return self.closed
            await self._change()
        piece = self._pieces.popleft()
        self._unread_bytes -= len(piece.data)
        self._send(credit=pb.ChannelCredit(bytes=len(piece.data)))
        return piece

    async def send(self, data: bytes) -> None:
        """Waits while the program does not take its input. Dropped if the channel has ended."""
        while data and self.closed is None:
            if not self._credit:
                await self._change()
                continue
            piece = data[: min(self._credit, MAX_PIECE_BYTES)]
            data = data[len(piece) :]
            self._credit -= len(piece)
            self._send(data=pb.ChannelData(data=piece))

    def resize(self, rows: int, columns: int) -> None:
        self._send(size=pb.TerminalSize(rows=rows, columns=columns))

    def end_input(self) -> None:
        self._send(end=pb.ChannelEnd())

    def close(self) -> None:
        self._send(closed=pb.ChannelClosed(reason="left"))
        self.end(Closed("left"))

    # For the stream

    def on_message(self, message: pb.ChannelMessage) -> None:
        match message.WhichOneof("what"):
            case "opened":
                self._credit += message.opened.credit
                if not self.opened.done():
                    self.opened.set_result(None)
            case "credit":
                self._credit += message.credit.bytes
            case "data":
                self._take(message.data)
            case "closed":
                told = message.closed
                self.end(Closed(told.reason, told.detail, told.exit_code))
            case _:
                pass
        self._changed.set()

    def end(self, closed: Closed) -> None:
        if self.closed is None:
            self.closed = closed
        if not self.opened.done():
            self.opened.set_exception(ChannelRefused(closed.reason, closed.detail))
            self.opened.exception()  # looked at: the opener may have gone
        self._changed.set()

    def _take(self, given: pb.ChannelData) -> None:
        self._unread_bytes += len(given.data)
        if self._unread_bytes > WINDOW_BYTES:
            self._send(closed=pb.ChannelClosed(reason="lost"))
            self.end(Closed("lost", "the node sent more than its credit"))
        elif self.closed is None:
            self._pieces.append(Piece(given.data, given.is_error_output))

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _send(self, **what: Any) -> None:
        if self.closed is None:
            self._tell(pb.ChannelMessage(channel_id=self.id, **what))


class ChannelLink:
    """The stream of one node."""

    __slots__ = ("channels", "node_id", "send")

    def __init__(self, node_id: NodeId, send: Send) -> None:
        self.node_id = node_id
        self.send = send
        self.channels: dict[int, Channel] = {}


class ChannelStreams:
    def __init__(self) -> None:
        self.is_connected: Callable[[NodeId], bool] = lambda _: False
        self._links: dict[NodeId, ChannelLink] = {}
        self._awaited: dict[NodeId, asyncio.Event] = {}
        self._last_id = 0

    # Streams of the agents

    def attach(self, node_id: NodeId, send: Send) -> ChannelLink:
        older = self._links.get(node_id)
        if older is not None:
            self.detach(older)
        link = self._links[node_id] = ChannelLink(node_id, send)
        if (awaited := self._awaited.pop(node_id, None)) is not None:
            awaited.set()
        return link

    def detach(self, link: ChannelLink) -> None:
        if self._links.get(link.node_id) is link:
            del self._links[link.node_id]
        for channel in tuple(link.channels.values()):
            channel.end(Closed("lost", f"the connection to node {link.node_id} was lost"))
        link.channels.clear()

    def on_message(self, link: ChannelLink, message: pb.ChannelMessage) -> None:
        channel = link.channels.get(message.channel_id)
        if channel is not None:  # else it was closed here meanwhile
            channel.on_message(message)
            if channel.closed is not None:
                link.channels.pop(channel.id, None)

    # Opening

    async def open(self, node_id: NodeId, asked: pb.OpenChannel) -> Channel:
        """Raises ChannelRefused."""
        link = await self._link(node_id)
        if len(link.channels) >= MAX_CHANNELS:
            raise ChannelRefused("node_busy", f"{MAX_CHANNELS} channels to node {node_id} are open")
        self._last_id += 1

        def send(message: pb.ChannelMessage) -> None:
            link.send(pb.FromSchedulerChannels(message=message))
            if message.WhichOneof("what") == "closed":
                link.channels.pop(message.channel_id, None)

        channel = link.channels[self._last_id] = Channel(self._last_id, node_id, send)
        asked.credit = WINDOW_BYTES
        send(pb.ChannelMessage(channel_id=channel.id, open=asked))
        try:
            async with asyncio.timeout(OPEN_S):
                await asyncio.shield(channel.opened)
        except TimeoutError:
            channel.close()
            raise ChannelRefused(
                "node_silent", f"node {node_id} did not answer within {OPEN_S:.0f} s"
            ) from None
        except BaseException:
            channel.close()
            raise
        return channel

    async def _link(self, node_id: NodeId) -> ChannelLink:
        """A node that has just registered opens its stream for channels a moment later."""
        if node_id not in self._links and self.is_connected(node_id):
            awaited = self._awaited.setdefault(node_id, asyncio.Event())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ATTACH_S):
                    await awaited.wait()
        link = self._links.get(node_id)
        if link is not None:
            return link
        if not self.is_connected(node_id):
            raise ChannelRefused("node_unreachable", f"node {node_id} is not connected")
        detail = f"node {node_id} takes no channels; its agent may be of an older version, or run nothing"
        raise ChannelRefused("node_unreachable", detail)
