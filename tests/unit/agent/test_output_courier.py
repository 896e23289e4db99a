"""The courier, with its files on a real disk and a scheduler that the test plays."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dgpu.agent.chunks import ChunkWriter
from dgpu.agent.lifecycle_words import DropOutput, KeepOutput
from dgpu.agent.output_courier import (
    CHUNK_BYTES,
    LEGACY_TAIL_BYTES,
    LOOK_MS,
    NEVER_MS,
    RESEND_MS,
    OutputCourier,
)
from dgpu.agent.output_shelf import OutputShelf
from dgpu.agent.output_words import (
    CallEnded,
    CallOpened,
    CourierInput,
    MessageTaken,
    OutputReceived,
    OutputSettled,
    ReadFiles,
    SchedulerSaid,
    SendMessage,
    TimeCame,
)
from dgpu.core.model.ids import LeaseId, NodeId, TaskId
from dgpu.wire.proto import agent_pb2 as pb

L1, L2 = LeaseId(1), LeaseId((7 << 32) + 2)
MIB = 1 << 20


class Desk:
    """Carries out what the courier asks for, at once."""

    def __init__(self, directory: Path) -> None:
        self.shelf = OutputShelf(directory, clock_ms=lambda: 0)
        self.courier = OutputCourier(node_id=NodeId("n1"), kept_ms=9_000)
        self.running: set[LeaseId] = set()
        self.settled: list[OutputSettled | OutputReceived] = []
        self.sent: list[pb.FromAgentOutput] = []
        self.now_ms = 0

    def put(self, value: CourierInput) -> None:
        inputs = [value]
        while inputs:
            for output in self.courier.on_input(inputs.pop(0), self.now_ms):
                if isinstance(output, SendMessage):
                    self.sent.append(output.message)
                    inputs.append(MessageTaken())
                elif isinstance(output, ReadFiles):
                    is_running = output.lease_id in self.running
                    inputs.append(self.shelf.read(output, is_running=is_running, run=None))
                else:
                    self.settled.append(output)

    def write(self, lease_id: LeaseId, text: bytes) -> None:
        writer = ChunkWriter(self.shelf.directory / str(lease_id), cap_bytes=64 << 20)
        writer.append(text)
        writer.close()

    def keep(
        self, lease_id: LeaseId, text: bytes, *, lost_bytes: int = 0, written: int | None = None
    ) -> None:
        self.write(lease_id, text)
        kept = KeepOutput(
            lease_id=lease_id,
            task_id=TaskId(9),
            attempt=2,
            lost_bytes=lost_bytes,
            output_bytes=len(text) if written is None else written,
        )
        self.put(kept)

    def open(self, credit: int = 1 << 30, head: int = 0, tail: int = 0) -> None:
        self.put(CallOpened(session_id="s1"))
        hello = self.sent.pop(0).hello
        assert (hello.node_id, hello.session_id) == ("n1", "s1")
        self.say(credit=pb.Credit(bytes=credit, head_bytes=head, tail_bytes=tail))

    def say(self, **message) -> None:
        self.put(SchedulerSaid(message=pb.FromSchedulerOutput(**message)))

    def fetch(self, **facts) -> None:
        self.say(fetch=pb.Fetch(**facts))

    def drain(self) -> list[pb.OutputChunk]:
        self.put(TimeCame())
        chunks, self.sent = [message.chunk for message in self.sent], []
        return chunks


@pytest.fixture
def desk(tmp_path) -> Desk:
    return Desk(tmp_path)


def test_the_first_and_the_last_bytes_of_an_attempt_travel_in_small_pieces(desk) -> None:
    text = os.urandom(3 * MIB)
    desk.keep(L1, text)
    assert desk.drain() == []
    desk.open(head=MIB, tail=MIB + 5)
    chunks = desk.drain()
    assert b"".join(chunk.data for chunk in chunks) == text[:MIB] + text[-MIB - 5 :]
    assert all(text[chunk.offset :].startswith(chunk.data) for chunk in chunks)
    assert max(len(chunk.data) for chunk in chunks) == CHUNK_BYTES
    assert [chunk.last for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert (chunks[-1].end, chunks[-1].kept_ms) == (3 * MIB, 9_000)
    assert (chunks[0].task_id, chunks[0].attempt, chunks[0].request_id) == (9, 2, 0)


@pytest.mark.parametrize("size", [1, MIB, MIB + 1, 2 * MIB])
def test_what_fits_is_sent_wholly_and_need_not_stay_on_the_node(desk, size) -> None:
    text = os.urandom(size)
    desk.keep(L1, text)
    desk.open(head=MIB, tail=MIB)
    chunks = desk.drain()
    assert b"".join(chunk.data for chunk in chunks) == text
    assert (chunks[-1].end, chunks[-1].kept_ms) == (size, 0)
    desk.say(stored=pb.Stored(lease_id=L1))
    assert [settled.is_whole for settled in desk.settled] == [True]


def test_what_the_scheduler_left_out_stays_on_the_node_and_is_read_there(desk) -> None:
    text = os.urandom(3 * MIB)
    desk.keep(L2, text)
    desk.open(head=MIB, tail=MIB)
    desk.drain()
    desk.say(stored=pb.Stored(lease_id=L2))
    (settled,) = desk.settled
    assert not settled.is_whole
    desk.shelf.keep(settled)
    assert not (desk.shelf.directory / str(L2)).exists()
    desk.fetch(request_id=5, lease_id=L2, task_id=9, attempt=2, offset=MIB, length=MIB)
    chunks = desk.drain()
    assert b"".join(chunk.data for chunk in chunks) == text[MIB : 2 * MIB]
    assert chunks[-1].last
    desk.fetch(request_id=6, lease_id=L2, task_id=8, attempt=2, offset=MIB)
    assert [chunk.error for chunk in desk.drain()] == ["this node has no output of that attempt"]


def test_a_scheduler_that_says_no_sizes_gets_the_last_mebibyte(desk) -> None:
    text = os.urandom(LEGACY_TAIL_BYTES + 100_000)
    desk.keep(L1, text)
    desk.open()
    chunks = desk.drain()
    assert chunks[0].offset == 100_000
    assert b"".join(chunk.data for chunk in chunks) == text[100_000:]


def test_files_deleted_to_make_room_are_missed_by_the_end(desk) -> None:
    """The scheduler must be able to say that there was more."""
    desk.keep(L1, b"", written=500)
    desk.open(head=MIB, tail=MIB)
    (chunk,) = desk.drain()
    assert (chunk.data, chunk.last, chunk.end) == (b"", True, 500)


def test_nothing_is_sent_beyond_the_credit(desk) -> None:
    desk.keep(L1, b"x" * 1_000)
    desk.open(credit=300, head=MIB, tail=MIB)
    assert [len(chunk.data) for chunk in desk.drain()] == [300]
    desk.say(credit=pb.Credit(bytes=1_000))
    assert [len(chunk.data) for chunk in desk.drain()] == [700]


@pytest.mark.parametrize("text", [b"", b"before"])
def test_what_was_lost_on_a_full_disk_is_told_in_its_place(desk, text) -> None:
    """Or it would look as if the task had written nothing, or no more than that."""
    mark = b"\n[dgpu: 7 bytes of output dropped, no room on disk]\n"
    desk.keep(L1, text, lost_bytes=7)
    desk.open(head=MIB, tail=MIB)
    desk.fetch(request_id=1, lease_id=L1)
    chunks = desk.drain()
    kept = [chunk for chunk in chunks if not chunk.request_id]
    fetched = [chunk for chunk in chunks if chunk.request_id]
    for seen in (kept, fetched):
        assert b"".join(chunk.data for chunk in seen) == text + mark
        assert [chunk.last for chunk in seen] == [False] * (len(seen) - 1) + [True]
    assert kept[-1].end == len(text + mark)


def test_output_is_kept_until_the_scheduler_has_stored_it(desk) -> None:
    desk.keep(L1, b"x")
    desk.open(head=MIB, tail=MIB)
    assert len(desk.drain()) == 1
    assert desk.settled == []
    desk.say(stored=pb.Stored(lease_id=L1))
    desk.say(stored=pb.Stored(lease_id=L1))
    assert [settled.lease_id for settled in desk.settled] == [L1]


def test_output_that_one_scheduler_has_stays_for_the_next_one(desk) -> None:
    """The master may be lost before a second scheduler has a copy: the one that takes over gets everything again."""
    desk.keep(L1, b"x")
    desk.open(head=MIB, tail=MIB)
    assert len(desk.drain()) == 1
    desk.say(received=pb.Received(lease_id=L1))
    assert desk.settled == [OutputReceived(lease_id=L1)]
    desk.now_ms += 10 * RESEND_MS
    assert desk.drain() == []
    assert desk.courier.wake_at_ms(desk.now_ms) == NEVER_MS
    desk.put(CallEnded())
    desk.open(head=MIB, tail=MIB)
    assert [chunk.data for chunk in desk.drain()] == [b"x"]
    desk.say(stored=pb.Stored(lease_id=L1))
    assert desk.settled[1].is_whole


def test_output_that_the_scheduler_refuses_is_not_sent_again_and_stays(desk) -> None:
    desk.keep(L1, b"x")
    desk.open(head=MIB, tail=MIB)
    desk.drain()
    desk.say(unwanted=pb.Unwanted(lease_id=L1, reason="no such lease"))
    (settled,) = desk.settled
    assert (settled.refused, settled.is_whole) == ("no such lease", False)
    desk.now_ms += RESEND_MS
    assert desk.drain() == []


def test_a_new_stream_carries_everything_again(desk) -> None:
    desk.keep(L1, b"x" * 100)
    desk.open(head=MIB, tail=MIB)
    assert len(desk.drain()) == 1
    desk.put(CallEnded())
    assert desk.drain() == []
    desk.open(head=MIB, tail=MIB)
    assert [chunk.data for chunk in desk.drain()] == [b"x" * 100]


def test_what_was_read_for_a_stream_that_ended_is_not_sent_on_the_next(tmp_path) -> None:
    courier = OutputCourier(node_id=NodeId("n1"))
    shelf = OutputShelf(tmp_path, clock_ms=lambda: 0)
    ChunkWriter(tmp_path / "1").append(b"x")
    courier.on_input(KeepOutput(lease_id=L1, task_id=TaskId(9), attempt=1, output_bytes=1), 0)
    courier.on_input(CallOpened(session_id="s1"), 0)
    courier.on_input(MessageTaken(), 0)
    credit = pb.FromSchedulerOutput(credit=pb.Credit(bytes=1 << 20, head_bytes=1, tail_bytes=1))
    (ask,) = courier.on_input(SchedulerSaid(message=credit), 0)
    assert isinstance(ask, ReadFiles)
    courier.on_input(CallEnded(), 0)
    (hello,) = courier.on_input(CallOpened(session_id="s2"), 0)
    assert isinstance(hello, SendMessage)
    assert courier.on_input(shelf.read(ask, is_running=False, run=None), 0) == []


def test_what_is_not_stored_for_a_minute_is_sent_again(desk) -> None:
    desk.keep(L1, b"x")
    desk.open(head=MIB, tail=MIB)
    desk.now_ms = 1_000
    assert len(desk.drain()) == 1
    wake_at_ms = desk.courier.wake_at_ms(1_000)
    desk.now_ms = wake_at_ms - 1
    assert desk.drain() == []
    desk.now_ms = wake_at_ms
    assert len(desk.drain()) == 1


def test_output_stored_in_parts_stays_on_the_node_if_the_answer_comes_late(desk) -> None:
    """The node would delete the only copy of the bytes between the head and the tail."""
    desk.keep(L1, os.urandom(3 * MIB))
    desk.open(credit=2 * MIB + 300, head=MIB, tail=MIB)
    desk.drain()
    desk.now_ms = RESEND_MS
    assert [chunk.offset for chunk in desk.drain()] == [0]  # the second pass waits for credit
    desk.say(stored=pb.Stored(lease_id=L1))
    assert [settled.is_whole for settled in desk.settled] == [False]


def test_output_sent_once_with_a_gap_and_once_whole_stays_on_the_node(desk) -> None:
    """Stored may acknowledge the first pass."""
    desk.keep(L1, b"", written=500)
    desk.open(head=MIB, tail=MIB)
    assert [chunk.kept_ms for chunk in desk.drain()] == [9_000]
    desk.write(L1, b"x" * 500)
    desk.now_ms = RESEND_MS
    assert [chunk.kept_ms for chunk in desk.drain()] == [0]
    desk.say(stored=pb.Stored(lease_id=L1))
    assert [settled.is_whole for settled in desk.settled] == [False]


def test_a_new_stream_forgets_the_gaps_of_the_one_before(desk) -> None:
    desk.keep(L1, b"", written=500)
    desk.open(head=MIB, tail=MIB)
    desk.drain()
    desk.put(CallEnded())
    desk.write(L1, b"x" * 500)
    desk.open(head=MIB, tail=MIB)
    desk.drain()
    desk.say(stored=pb.Stored(lease_id=L1))
    assert [settled.is_whole for settled in desk.settled] == [True]


def test_a_reader_is_answered_before_what_is_to_be_kept(desk) -> None:
    desk.keep(L1, b"kept")
    desk.write(L2, b"running")
    desk.running.add(L2)
    desk.put(CallOpened(session_id="s1"))
    desk.sent.clear()
    desk.fetch(request_id=5, lease_id=L2)
    desk.say(credit=pb.Credit(bytes=1 << 20, head_bytes=MIB, tail_bytes=MIB))
    chunks = desk.drain()
    assert [(chunk.request_id, chunk.data, chunk.last) for chunk in chunks] == [
        (5, b"running", False),
        (5, b"", True),
        (0, b"kept", True),
    ]


def test_a_long_download_does_not_hold_up_what_is_to_be_kept(desk) -> None:
    desk.write(L2, b"x" * (40 * CHUNK_BYTES))
    desk.keep(L1, b"kept")
    desk.put(CallOpened(session_id="s1"))
    desk.sent.clear()
    desk.fetch(request_id=5, lease_id=L2)
    desk.say(credit=pb.Credit(bytes=1 << 30, head_bytes=MIB, tail_bytes=MIB))
    chunks = desk.drain()
    assert [chunk.data for chunk in chunks].index(b"kept") < 10


def test_a_followed_attempt_is_looked_at_until_it_has_ended(desk) -> None:
    desk.write(L1, b"one")
    desk.running.add(L1)
    desk.open()
    desk.fetch(request_id=5, lease_id=1, follow=True)
    assert [chunk.data for chunk in desk.drain()] == [b"one"]
    assert desk.courier.wake_at_ms(0) == LOOK_MS
    assert desk.courier.wake_at_ms(LOOK_MS + 50) == LOOK_MS  # it became due on the way to the timer
    desk.write(L1, b"one two")
    desk.running.clear()
    desk.now_ms = LOOK_MS
    chunks = desk.drain()
    assert [(chunk.data, chunk.last) for chunk in chunks] == [(b" two", False), (b"", True)]


def test_a_cancelled_fetch_ends_without_a_word(desk) -> None:
    desk.running.add(L1)
    desk.open()
    desk.fetch(request_id=5, lease_id=1, follow=True)
    assert desk.drain() == []
    desk.say(cancel_fetch=pb.CancelFetch(request_id=5))
    desk.running.clear()
    desk.now_ms = LOOK_MS
    assert desk.drain() == []


def test_output_that_this_node_does_not_have_is_answered_with_a_reason(desk) -> None:
    desk.open()
    desk.fetch(request_id=5, lease_id=77)
    (chunk,) = desk.drain()
    assert chunk.last
    assert chunk.error == "this node has no output of that attempt"


def test_output_that_was_taken_back_is_not_sent(desk) -> None:
    """It is of another cluster. This one may know the same numbers and would take it for its own."""
    desk.keep(L1, b"of the old cluster")
    desk.put(DropOutput(lease_id=L1))
    desk.open()
    assert desk.drain() == []
    assert desk.settled == []
