"""WebSocket without I/O: whatever way the bytes are cut, the messages are the same, and their size is bounded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgpu.wire.websocket import BadWebSocket, Decoder, Kind, Message, accept_of, encode

BODIES = st.one_of(
    st.binary(max_size=300), st.sampled_from([b"x" * 125, b"x" * 126, b"y" * 65_535, b"z" * 65_536])
)


def decoder(*, expects_masks: bool = True) -> Decoder:
    return Decoder(expects_masks=expects_masks, max_bytes=100_000)


@given(
    messages=st.lists(st.tuples(st.sampled_from([Kind.TEXT, Kind.BINARY]), BODIES), max_size=4),
    cut=st.integers(1, 5_000),
    masked=st.booleans(),
)
def test_messages_arrive_as_sent(messages: list[tuple[Kind, bytes]], cut: int, masked: bool) -> None:
    sent = b"".join(encode(kind, body, masked=masked) for kind, body in messages)
    reader = decoder(expects_masks=masked)
    pieces = (sent[start : start + cut] for start in range(0, len(sent), cut))
    received = [message for piece in pieces for message in reader.feed(piece)]
    assert received == [Message(kind, body) for kind, body in messages]


def test_a_message_may_come_in_parts_with_a_ping_between() -> None:
    first = bytes([Kind.TEXT, 3]) + b"hel"
    last = bytes([0x80 | Kind.CONTINUATION, 2]) + b"lo"
    ping = encode(Kind.PING, b"p", masked=False)
    assert decoder(expects_masks=False).feed(first + ping + last) == [
        Message(Kind.PING, b"p"),
        Message(Kind.TEXT, b"hello"),
    ]


@pytest.mark.parametrize(
    "received",
    [
        encode(Kind.TEXT, b"not masked", masked=False),
        encode(Kind.BINARY, b"x" * 100_001, masked=True)[:14],  # refused before its body has arrived
        bytes([0x80 | 3, 0x80, 0, 0, 0, 0]),  # an unknown kind
        bytes([0x80 | Kind.CONTINUATION, 0x80, 0, 0, 0, 0]),  # of no message
        bytes([Kind.PING, 0x80, 0, 0, 0, 0]),  # a control frame in parts
        encode(Kind.PING, b"x" * 126, masked=True),
    ],
    ids=["not masked", "too long", "unknown kind", "part of nothing", "ping in parts", "long ping"],
)
def test_other_bytes_are_refused(received: bytes) -> None:
    with pytest.raises(BadWebSocket):
        decoder().feed(received)


def test_parts_cannot_exceed_the_limit_together() -> None:
    part = bytes([Kind.BINARY, 126]) + (60_000).to_bytes(2, "big") + b"x" * 60_000
    more = bytes([Kind.CONTINUATION]) + part[1:]
    reader = decoder(expects_masks=False)
    reader.feed(part)
    with pytest.raises(BadWebSocket):
        reader.feed(more)


def test_the_answer_to_a_key_is_that_of_the_standard() -> None:
    assert accept_of(b"dGhlIHNhbXBsZSBub25jZQ==") == b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
