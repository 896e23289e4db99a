from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as some

from dgpu.worker import frames

SENT: list[frames.ToWorker] = [
    frames.Call(lease=1, entrypoint="a:b", args=b"x" * 70_000),
    frames.Cancel(lease=1),
    frames.Taken(leases=(1, 2)),
    frames.Leave(),
]


@given(some.integers(1, 5_000))
def test_frames_arrive_whole_however_the_bytes_are_cut(size: int) -> None:
    sent = b"".join(frames.encode(frame) for frame in SENT)
    decoder = frames.WorkerDecoder()
    found = [frame for at in range(0, len(sent), size) for frame in decoder.feed(sent[at : at + size])]
    assert found == SENT


@pytest.mark.parametrize("data", [b"\x7f\xff\xff\xff", b"\0\0\0\1\xc0", b"\0\0\0\1\x80"])
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(frames.FrameError):
        frames.WorkerDecoder().feed(data)


@pytest.mark.parametrize(
    "call",
    [
        {"lease": -1},
        {"lease": 1, "task_id": -1},
        {"lease": 1, "attempt": 1 << 40},
        {"lease": 1, "attempt": -1},
        {"lease": 2**64 - 1},
        {"lease": 1, "nonce": "x" * 201},
    ],
)
def test_a_worker_cannot_claim_numbers_that_no_message_of_the_agent_can_hold(call: dict[str, object]) -> None:
    """Such a number ended the agent when it registered, and every agent that was started after it."""
    hello = {"t": "hello", "protocol": frames.PROTOCOL, "pid": 1, "calls": [{"state": "running", **call}]}
    body = msgspec.msgpack.encode(hello)
    with pytest.raises(frames.FrameError, match="not a frame"):
        frames.AgentDecoder().feed(len(body).to_bytes(4, "big") + body)
