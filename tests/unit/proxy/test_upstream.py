"""HTTP/1.1 over a channel: heads, bodies of all kinds, and connections that end early."""

from __future__ import annotations

import asyncio

import pytest

from dgpu.core.model.ids import NodeId
from dgpu.service.proxy.upstream import MAX_HEAD_BYTES, Head, Upstream, UpstreamFailed
from dgpu.service.task_channels import Channel, Closed
from dgpu.wire.proto import agent_pb2 as pb


def exchange(
    *pieces: bytes, end: str = "", is_head_request: bool = False, is_sent: bool = True
) -> tuple[Head, bytes, bool]:
    """The head, the body, and whether the connection may be used again."""

    async def run() -> tuple[Head, bytes, bool]:
        channel = Channel(1, NodeId("n1"), lambda _: None)
        channel.on_message(pb.ChannelMessage(opened=pb.ChannelOpened(credit=1 << 20)))
        upstream = Upstream(channel)
        await upstream.send_head(b"GET / HTTP/1.1\r\n\r\n")
        if is_sent:
            await upstream.end_request(chunked=False)
        for piece in pieces:
            channel.on_message(pb.ChannelMessage(data=pb.ChannelData(data=piece)))
        if end:
            channel.end(Closed(end))
        head = await upstream.head(is_head_request=is_head_request)
        body = b""
        while piece := await upstream.piece():
            body += piece
        return head, body, upstream.may_be_reused

    return asyncio.run(run())


def test_bodies_end_by_length_by_chunks_and_by_the_connection() -> None:
    head, body, again = exchange(b"HTTP/1.1 200 OK\r\nContent-Len", b"gth: 3\r\n\r\nab", b"c")
    assert (head.status, body, again) == (200, b"abc", True)
    _, body, again = exchange(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n", b"0\r\n\r\n"
    )
    assert (body, again) == (b"ab", True)
    _, body, again = exchange(b"HTTP/1.0 200 OK\r\n\r\nab", b"c", end="ended")
    assert (body, again) == (b"abc", False)
    _, body, again = exchange(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 1\r\n\r\na")
    assert (body, again) == (b"a", False)


def test_a_connection_with_half_a_request_is_not_used_again() -> None:
    """The program would take the next request, of another user, for the rest of the body."""
    _, body, again = exchange(b"HTTP/1.1 413 Too Large\r\nContent-Length: 1\r\n\r\na", is_sent=False)
    assert (body, again) == (b"a", False)


def test_a_second_answer_to_one_request_is_dropped() -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n"
    _, body, again = exchange(answer + b"a" + answer + b"b")
    assert (body, again) == (b"a", False)


def test_interim_answers_are_skipped_and_switches_keep_their_first_bytes() -> None:
    head, body, _ = exchange(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\nA: b\r\n\r\n")
    assert (head.status, head.headers, body) == (204, [(b"A", b"b")], b"")
    head, body, again = exchange(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", is_head_request=True)
    assert (head.status, body, again) == (200, b"", False)

    async def switch() -> Head:
        channel = Channel(1, NodeId("n1"), lambda _: None)
        upstream = Upstream(channel)
        await upstream.send_head(b"")
        answer = b"HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n\x81\x01x"
        channel.on_message(pb.ChannelMessage(data=pb.ChannelData(data=answer)))
        return await upstream.head()

    head = asyncio.run(switch())
    assert (head.status, head.rest) == (101, b"\x81\x01x")


@pytest.mark.parametrize(
    ("pieces", "code"),
    [
        ((b"SSH-2.0-OpenSSH\r\n",), "bad_answer"),
        ((b"HTTP/1.1 200 OK\r\nA: " + b"x" * MAX_HEAD_BYTES,), "bad_answer"),
        ((b"HTTP/1.1 200",), "no_answer"),
        ((b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc",), "cut_off"),
    ],
)
def test_an_answer_that_is_not_whole_is_never_passed_as_whole(pieces: tuple[bytes, ...], code: str) -> None:
    with pytest.raises(UpstreamFailed) as failed:
        exchange(*pieces, end="ended")
    assert failed.value.code == code


def test_a_connection_that_ends_at_once_left_the_request_untouched() -> None:
    with pytest.raises(UpstreamFailed) as failed:
        exchange(end="ended")
    assert failed.value.is_untouched
