"""Output on disk and on its way to the scheduler."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from dgpu.agent.chunks import ChunkWriter, extent, read_at
from dgpu.agent.lifecycle_words import KeepOutput
from dgpu.agent.output import CHUNK_BYTES, KEPT_BYTES, LOOK_MS, RESEND_MS, OutputSender
from dgpu.core.ids import LeaseId, NodeId, TaskId
from dgpu.wire.proto import agent_pb2 as pb

L1, L2 = LeaseId(1), LeaseId(2)


def whole(directory: Path) -> bytes:
    first, end = extent(directory)
    found = b""
    while first + len(found) < end:
        found += read_at(directory, first + len(found), 1000)[1]
    return found


def test_what_was_written_is_read_back_from_any_offset(tmp_path) -> None:
    writer = ChunkWriter(tmp_path / "1", cap_bytes=800)
    text = bytes(range(256)) * 2
    for at in range(0, len(text), 33):
        writer.append(text[at : at + 33])
    assert writer.total_bytes == len(text)
    assert extent(tmp_path / "1") == (0, 512)
    assert whole(tmp_path / "1") == text
    offset, found = read_at(tmp_path / "1", 250, 1000)
    assert (offset, found) == (250, text[250 : 250 + len(found)])
    assert read_at(tmp_path / "1", 512, 10) == (512, b"")


def test_beyond_the_cap_the_oldest_bytes_go(tmp_path) -> None:
    writer = ChunkWriter(tmp_path / "1", cap_bytes=800)
    text = b"".join(b"%07d\n" % number for number in range(1_000))
    writer.append(text)
    first, end = extent(tmp_path / "1")
    assert end == 8_000
    assert 700 <= end - first <= 800
    assert whole(tmp_path / "1") == text[first:]
    assert read_at(tmp_path / "1", 0, 8) == (first, text[first : first + 8])


def test_a_task_that_writes_nothing_leaves_no_directory(tmp_path) -> None:
    writer = ChunkWriter(tmp_path / "1")
    writer.close()
    assert not (tmp_path / "1").exists()
    assert extent(tmp_path / "1") == (0, 0)


def test_a_full_disk_drops_output_and_says_how_much(tmp_path, monkeypatch) -> None:
    writer = ChunkWriter(tmp_path / "1")
    writer.append(b"before\n")
    write = os.write

    def full(fd: int, text: bytes) -> int:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "write", full)
    writer.append(b"lost")
    writer.append(b"lost too")
    monkeypatch.setattr(os, "write", write)
    writer.append(b"after\n")
    mark = b"\n[dgpu: 12 bytes of output dropped, no room on disk]\n"
    assert whole(tmp_path / "1") == b"before\n" + mark + b"after\n"


def test_a_disk_that_stays_full_to_the_end_leaves_a_count_instead_of_a_mark(tmp_path, monkeypatch) -> None:
    (tmp_path / "in the way").touch()
    writer = ChunkWriter(tmp_path / "in the way" / "1")
    writer.append(b"lost")
    writer.close()
    assert (writer.total_bytes, writer.dropped_bytes) == (0, 4)


def test_a_mark_is_written_at_the_end_if_there_is_room_again(tmp_path) -> None:
    (tmp_path / "1").touch()
    writer = ChunkWriter(tmp_path / "1")
    writer.append(b"lost")
    (tmp_path / "1").unlink()
    writer.close()
    assert whole(tmp_path / "1") == b"\n[dgpu: 4 bytes of output dropped, no room on disk]\n"
    assert writer.dropped_bytes == 0


class Sending:
    """A sender with its surroundings."""

    def __init__(self, directory: Path, limit_bytes: int = 1 << 30) -> None:
        self.directory = directory
        self.running: set[LeaseId] = set()
        self.settled: list[LeaseId] = []
        self.sender = OutputSender(
            node_id=NodeId("n1"),
            directory=directory,
            limit_bytes=limit_bytes,
            is_running=self.running.__contains__,
            on_settled=self.settled.append,
        )

    def write(self, lease_id: LeaseId, text: bytes) -> None:
        writer = ChunkWriter(self.directory / str(lease_id), cap_bytes=64 << 20)
        writer.append(text)
        writer.close()

    def keep(self, lease_id: LeaseId, text: bytes, lost_bytes: int = 0) -> None:
        self.write(lease_id, text)
        self.sender.keep(KeepOutput(lease_id=lease_id, task_id=TaskId(9), attempt=2, lost_bytes=lost_bytes))

    def open(self, credit: int = 1 << 30) -> None:
        self.sender.opened("s1")
        hello = self.sender.next_message(0)
        assert hello is not None
        assert (hello.hello.node_id, hello.hello.session_id) == ("n1", "s1")
        self.credit(credit)

    def credit(self, count: int) -> None:
        self.sender.on_message(pb.FromSchedulerOutput(credit=pb.Credit(bytes=count)))

    def fetch(self, **facts) -> None:
        self.sender.on_message(pb.FromSchedulerOutput(fetch=pb.Fetch(**facts)))

    def stored(self, lease_id: LeaseId) -> None:
        self.sender.on_message(pb.FromSchedulerOutput(stored=pb.Stored(lease_id=lease_id)))

    def drain(self, now_ms: int = 0) -> list[pb.OutputChunk]:
        chunks = []
        while (message := self.sender.next_message(now_ms)) is not None:
            chunks.append(message.chunk)
        return chunks


@pytest.fixture
def sending(tmp_path) -> Sending:
    return Sending(tmp_path)


def test_the_last_mebibyte_of_an_attempt_travels_in_small_pieces(sending) -> None:
    text = os.urandom(KEPT_BYTES + 100_000)
    sending.keep(L1, text)
    assert sending.drain() == []
    sending.open()
    chunks = sending.drain()
    assert b"".join(chunk.data for chunk in chunks) == text[-KEPT_BYTES:]
    assert chunks[0].offset == 100_000
    assert max(len(chunk.data) for chunk in chunks) == CHUNK_BYTES
    assert [chunk.last for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert (chunks[0].task_id, chunks[0].attempt, chunks[0].request_id) == (9, 2, 0)


def test_nothing_is_sent_beyond_the_credit(sending) -> None:
    sending.keep(L1, b"x" * 1_000)
    sending.open(credit=300)
    assert [len(chunk.data) for chunk in sending.drain()] == [300]
    sending.credit(1_000)
    assert [len(chunk.data) for chunk in sending.drain()] == [700]


@pytest.mark.parametrize("text", [b"", b"before"])
def test_what_was_lost_on_a_full_disk_is_told_in_its_place(sending, text) -> None:
    """Or it would look as if the task had written nothing, or no more than that."""
    mark = b"\n[dgpu: 7 bytes of output dropped, no room on disk]\n"
    sending.keep(L1, text, lost_bytes=7)
    sending.open(credit=10)
    chunks = sending.drain()
    assert [chunk.last for chunk in chunks] == [False] * len(chunks)
    sending.fetch(request_id=1, lease_id=L1)
    sending.credit(1_000)
    chunks += sending.drain()
    kept = [chunk for chunk in chunks if not chunk.request_id]
    fetched = [chunk for chunk in chunks if chunk.request_id]
    for seen in (kept, fetched):
        assert b"".join(chunk.data for chunk in seen) == text + mark
        assert [chunk.last for chunk in seen] == [False] * (len(seen) - 1) + [True]


def test_output_is_kept_until_the_scheduler_has_stored_it(sending) -> None:
    sending.keep(L1, b"x")
    sending.open()
    assert len(sending.drain(now_ms=5)) == 1
    assert sending.settled == []
    sending.stored(L1)
    sending.stored(L1)
    assert sending.settled == [L1]


def test_a_new_stream_carries_everything_again(sending) -> None:
    sending.keep(L1, b"x" * 100)
    sending.open()
    assert len(sending.drain()) == 1
    sending.sender.closed()
    assert sending.drain() == []
    sending.open()
    assert [chunk.data for chunk in sending.drain()] == [b"x" * 100]


def test_what_is_not_stored_for_a_minute_is_sent_again(sending) -> None:
    sending.keep(L1, b"x")
    sending.open()
    assert len(sending.drain(now_ms=1_000)) == 1
    assert sending.sender.wake_at_ms(1_000) == 1_000 + RESEND_MS
    assert sending.drain(now_ms=1_000 + RESEND_MS - 1) == []
    assert len(sending.drain(now_ms=1_000 + RESEND_MS)) == 1


def test_too_much_waiting_output_drops_the_oldest_with_a_mark(tmp_path) -> None:
    sending = Sending(tmp_path, limit_bytes=1_000)
    sending.keep(L1, b"a" * 700)
    sending.keep(L2, b"b" * 700)
    sending.open()
    chunks = sending.drain()
    assert b"output dropped" in chunks[0].data
    assert chunks[0].lease_id == L1
    assert chunks[1].data == b"b" * 700


def test_a_reader_is_answered_before_what_is_to_be_kept(sending) -> None:
    sending.keep(L1, b"kept")
    sending.write(L2, b"running")
    sending.running.add(L2)
    sending.open()
    sending.fetch(request_id=5, lease_id=2)
    chunks = sending.drain()
    assert [(chunk.request_id, chunk.data, chunk.last) for chunk in chunks] == [
        (5, b"running", False),
        (5, b"", True),
        (0, b"kept", True),
    ]


def test_a_followed_attempt_is_looked_at_until_it_has_ended(sending) -> None:
    sending.write(L1, b"one")
    sending.running.add(L1)
    sending.open()
    sending.fetch(request_id=5, lease_id=1, follow=True)
    assert [chunk.data for chunk in sending.drain(now_ms=0)] == [b"one"]
    assert sending.sender.wake_at_ms(0) == LOOK_MS
    sending.write(L1, b"one two")
    sending.running.clear()
    chunks = sending.drain(now_ms=LOOK_MS)
    assert [(chunk.data, chunk.last) for chunk in chunks] == [(b" two", False), (b"", True)]


def test_a_cancelled_fetch_ends_without_a_word(sending) -> None:
    sending.running.add(L1)
    sending.open()
    sending.fetch(request_id=5, lease_id=1, follow=True)
    assert sending.drain() == []
    sending.sender.on_message(pb.FromSchedulerOutput(cancel_fetch=pb.CancelFetch(request_id=5)))
    sending.running.clear()
    assert sending.drain(now_ms=LOOK_MS) == []


def test_output_that_this_node_does_not_have_is_answered_with_a_reason(sending) -> None:
    sending.open()
    sending.fetch(request_id=5, lease_id=77)
    (chunk,) = sending.drain()
    assert chunk.last
    assert chunk.error == "this node has no output of that attempt"
