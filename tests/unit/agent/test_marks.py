"""Marks beside the output: when bytes were written, and to which stream."""

from __future__ import annotations

import struct

from dgpu.agent import chunks, marks
from dgpu.agent.chunks import ChunkWriter
from dgpu.agent.marks import STDERR, STDOUT, MarkWriter, read_marks


def told(packed: bytes) -> list[tuple[int, int, int]]:
    return [(offset, word >> 1, word & 1) for offset, word in struct.iter_unpack("<QQ", packed)]


def test_a_mark_holds_until_the_time_or_the_stream_changes(tmp_path) -> None:
    writer = MarkWriter(tmp_path)
    for offset, at_ms, stream in (
        (0, 1_000, 0),
        (5, 1_050, 0),
        (9, 1_060, 1),
        (12, 1_300, 1),
        (20, 1_250, 1),
    ):
        writer.note(offset, at_ms, stream)
    writer.close()
    every = [(0, 1_000, STDOUT), (9, 1_060, STDERR), (12, 1_300, STDERR), (20, 1_250, STDERR)]
    assert told(read_marks(tmp_path, 0, 100)) == every  # the last one: the clock was set back
    assert told(read_marks(tmp_path, 5, 9)) == every[:1]
    assert told(read_marks(tmp_path, 9, 10)) == every[1:2]
    assert told(read_marks(tmp_path, 10, 13)) == every[1:3]
    assert told(read_marks(tmp_path, 50, 60)) == every[3:]


def test_output_without_marks_has_none(tmp_path) -> None:
    assert read_marks(tmp_path, 0, 10) == b""


def test_marks_of_a_long_output_stay_few(tmp_path, monkeypatch) -> None:
    """Ten marks a second for a month would be 400 MB."""
    monkeypatch.setattr(marks, "_MARKS_PER_STEP", 10)
    writer = MarkWriter(tmp_path)
    for number in range(100_000):
        writer.note(number, number * 100, STDOUT)
    writer.close()
    assert len(told((tmp_path / "marks").read_bytes())) < 200


def test_a_writer_marks_its_output_and_its_size_does_not_count(tmp_path) -> None:
    writer = ChunkWriter(tmp_path / "1")
    writer.append(b"out", STDOUT)
    writer.append(b"err!", STDERR)
    writer.close()
    assert [(offset, stream) for offset, _, stream in told(read_marks(tmp_path / "1", 0, 7))] == [
        (0, 0),
        (3, 1),
    ]
    assert chunks.size(tmp_path / "1") == 7
    assert chunks.extent(tmp_path / "1") == (0, 7)
