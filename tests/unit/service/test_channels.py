"""Channels to runs, with a node played by the test: windows, ends, refusals."""

from __future__ import annotations

import asyncio

import pytest

from dgpu.core.model.ids import NodeId
from dgpu.service.task_channels import (
    MAX_CHANNELS,
    WINDOW_BYTES,
    Channel,
    ChannelLink,
    ChannelRefused,
    ChannelStreams,
    Closed,
    Piece,
)
from dgpu.wire.proto import agent_pb2 as pb

N1 = NodeId("n1")


class Node:
    def __init__(self, streams: ChannelStreams) -> None:
        self.streams = streams
        self.heard: list[pb.ChannelMessage] = []
        self.link: ChannelLink = streams.attach(N1, lambda sent: self.heard.append(sent.message))

    def say(self, channel_id: int, **what: object) -> None:
        self.streams.on_message(self.link, pb.ChannelMessage(channel_id=channel_id, **what))

    def kinds(self) -> list[str]:
        return [str(message.WhichOneof("what")) for message in self.heard]

    async def open(self, credit: int = WINDOW_BYTES) -> Channel:
        opening = asyncio.ensure_future(self.streams.open(N1, pb.OpenChannel(lease_id=7)))
        await asyncio.sleep(0)
        asked = self.heard.pop()
        assert asked.open.lease_id == 7
        assert asked.open.credit == WINDOW_BYTES
        self.say(asked.channel_id, opened=pb.ChannelOpened(credit=credit))
        return await opening


async def test_output_comes_in_order_and_then_the_end() -> None:
    node = Node(ChannelStreams())
    channel = await node.open()
    node.say(channel.id, data=pb.ChannelData(data=b"out"))
    node.say(channel.id, data=pb.ChannelData(data=b"err", is_error_output=True))
    node.say(channel.id, closed=pb.ChannelClosed(reason="ended", exit_code=3))
    received = [await channel.receive() for _ in range(3)]
    assert received == [Piece(b"out", False), Piece(b"err", True), Closed("ended", "", 3)]
    assert not node.link.channels


async def test_a_node_gets_credit_only_for_bytes_that_were_taken() -> None:
    """Otherwise a client that does not read would fill the scheduler's memory."""
    node = Node(ChannelStreams())
    channel = await node.open()
    node.say(channel.id, data=pb.ChannelData(data=b"x" * 1000))
    assert node.kinds() == []
    await channel.receive()
    assert [message.credit.bytes for message in node.heard] == [1000]


async def test_a_node_that_sends_more_than_its_credit_is_cut() -> None:
    node = Node(ChannelStreams())
    channel = await node.open()
    for _ in range(WINDOW_BYTES // 65_536 + 1):
        node.say(channel.id, data=pb.ChannelData(data=b"x" * 65_536))
    assert channel.closed is not None
    assert channel.closed.reason == "lost"
    assert node.kinds() == ["closed"]


async def test_input_waits_for_credit() -> None:
    node = Node(ChannelStreams())
    channel = await node.open(credit=4)
    sending = asyncio.ensure_future(channel.send(b"0123456"))
    await asyncio.sleep(0)
    assert [message.data.data for message in node.heard] == [b"0123"]
    assert not sending.done()
    node.say(channel.id, credit=pb.ChannelCredit(bytes=10))
    await sending
    assert node.heard[-1].data.data == b"456"


async def test_the_end_of_a_node_ends_its_channels_and_wakes_their_users() -> None:
    node = Node(ChannelStreams())
    channel = await node.open(credit=0)
    reading, sending = asyncio.ensure_future(channel.receive()), asyncio.ensure_future(channel.send(b"x"))
    await asyncio.sleep(0)
    node.streams.detach(node.link)
    assert await reading == Closed("lost", "the connection to node n1 was lost")
    await sending


async def test_closing_tells_the_node_once() -> None:
    node = Node(ChannelStreams())
    channel = await node.open()
    channel.close()
    channel.close()
    channel.resize(1, 1)
    assert node.kinds() == ["closed"]
    assert not node.link.channels
    node.say(channel.id, data=pb.ChannelData(data=b"late"))


async def test_a_refusal_of_the_node_is_raised() -> None:
    node = Node(ChannelStreams())
    opening = asyncio.ensure_future(node.streams.open(N1, pb.OpenChannel()))
    await asyncio.sleep(0)
    node.say(node.heard[-1].channel_id, closed=pb.ChannelClosed(reason="run_ended", detail="gone"))
    with pytest.raises(ChannelRefused, match="gone") as refused:
        await opening
    assert refused.value.code == "run_ended"


async def test_a_node_has_a_bounded_number_of_channels() -> None:
    node = Node(ChannelStreams())
    for _ in range(MAX_CHANNELS):
        await node.open()
    with pytest.raises(ChannelRefused) as refused:
        await node.streams.open(N1, pb.OpenChannel())
    assert refused.value.code == "node_busy"


async def test_a_node_that_is_not_connected_is_named() -> None:
    with pytest.raises(ChannelRefused, match="node n1 is not connected"):
        await ChannelStreams().open(N1, pb.OpenChannel())
