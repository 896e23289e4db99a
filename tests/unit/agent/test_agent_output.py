"""Output on disk."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from dgpu.agent.chunks import ChunkWriter, extent, read_at, size


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


def test_beyond_the_cap_the_middle_goes(tmp_path) -> None:
    """The first line often says what the rest means."""
    writer = ChunkWriter(tmp_path / "1", cap_bytes=800)
    text = b"".join(b"%07d\n" % number for number in range(1_000))
    writer.append(text)
    assert extent(tmp_path / "1") == (0, 8_000)
    assert read_at(tmp_path / "1", 0, 1_000) == (0, text[:50])
    offset, found = read_at(tmp_path / "1", 50, 1_000)
    assert 700 <= 8_000 - offset + 50 <= 800
    assert found == text[offset : offset + 50]
    assert size(tmp_path / "1") == 8_000 - offset + 50


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
