from __future__ import annotations

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
