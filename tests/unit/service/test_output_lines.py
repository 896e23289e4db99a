"""Lines of output: chosen by time, text and stream, and shown with their times."""

from __future__ import annotations

import struct

import pytest

from dgpu.core.model.ids import LeaseId, TaskId
from dgpu.service.task_output.lines import LineChooser, NoMarks, Wanted
from dgpu.service.task_output.marked import MarkedBytes
from dgpu.service.task_output.pack import OutputPart, decode, encode

SECOND = 1_000


def marks(*entries: tuple[int, int, int]) -> bytes:
    return b"".join(struct.pack("<QQ", offset, at_ms << 1 | stream) for offset, at_ms, stream in entries)


def piece(data: bytes, *entries: tuple[int, int, int], offset: int = 0) -> MarkedBytes:
    return MarkedBytes(data, offset, marks(*entries))


def chosen(wanted: Wanted, *pieces: bytes) -> bytes:
    chooser = LineChooser(wanted)
    return b"".join([*map(chooser.feed, pieces), chooser.finish()])


TEXT = piece(b"one\ntwo\nthree\n", (0, 1 * SECOND, 0), (4, 2 * SECOND, 0), (8, 3 * SECOND, 0))


def test_the_time_of_a_line_is_that_of_its_first_byte() -> None:
    late = piece(b"one\ntwo\n", (0, 1 * SECOND, 0), (6, 9 * SECOND, 0))
    assert chosen(Wanted(times=True), late) == b"1970-01-01T00:00:01.000Z one\n1970-01-01T00:00:01.000Z two\n"


def test_lines_since_a_time() -> None:
    assert chosen(Wanted(since_ms=2 * SECOND), TEXT) == b"two\nthree\n"


def test_a_line_in_two_pieces_is_one_line() -> None:
    pieces = (piece(b"lo", (0, SECOND, 0)), piece(b"ss 1\nloss", offset=2), piece(b" 2", offset=11))
    assert chosen(Wanted(text=b"loss 1"), *pieces) == b"loss 1\n"
    assert chosen(Wanted(text=b"loss 2"), *pieces) == b"loss 2"


def test_one_stream_without_the_other() -> None:
    mixed = piece(b"o1\nER1\no2\n", (0, SECOND, 0), (3, SECOND, 1), (7, SECOND, 0))
    assert chosen(Wanted(stream="stderr"), mixed) == b"ER1\n"
    assert chosen(Wanted(stream="stdout"), mixed) == b"o1\no2\n"


def test_a_line_of_one_stream_is_not_cut_by_the_other() -> None:
    cut = piece(b"o1 ERR\no2\n", (0, SECOND, 0), (3, 2 * SECOND, 1), (7, SECOND, 0))
    assert chosen(Wanted(text=b"o1"), cut) == b"o1 o2\n"
    assert (
        chosen(Wanted(times=True), cut) == b"1970-01-01T00:00:02.000Z ERR\n1970-01-01T00:00:01.000Z o1 o2\n"
    )


def test_first_and_last_lines_are_counted_after_the_choice() -> None:
    assert chosen(Wanted(text=b"o", head=1), TEXT) == b"one\n"
    assert chosen(Wanted(text=b"o", tail=1), TEXT) == b"two\n"
    chooser = LineChooser(Wanted(head=1))
    assert (chooser.feed(TEXT), chooser.is_done) == (b"one\n", True)


def test_a_slice_keeps_its_place() -> None:
    assert chosen(Wanted(since_ms=2 * SECOND), TEXT[2:]) == b"two\nthree\n"
    assert TEXT[4:].offset == 4


def test_a_line_about_a_gap_is_shown_without_a_time() -> None:
    said = chosen(Wanted(times=True, since_ms=0), TEXT, b"[dgpu: 5 bytes left out here]\n")
    assert said.splitlines()[-1].split() == [b"-", *b"[dgpu: 5 bytes left out here]".split()]


def test_a_progress_bar_is_one_line() -> None:
    assert chosen(Wanted(head=1), piece(b"10%\r20%\r30%\ndone\n", (0, 0, 0))) == b"10%\r20%\r30%\n"


def test_output_of_an_earlier_version_has_no_times() -> None:
    old = piece(b"one\n")
    for wanted in (Wanted(times=True), Wanted(since_ms=0), Wanted(stream="stderr")):
        with pytest.raises(NoMarks):
            chosen(wanted, old)
    assert chosen(Wanted(text=b"n"), old) == b"one\n"


def test_marks_are_stored_with_the_part() -> None:
    part = OutputPart(
        task_id=TaskId(1),
        attempt=1,
        lease_id=LeaseId(1),
        offset=7,
        content=b"x" * 100,
        marks=marks((7, 1, 0)),
    )
    assert decode(encode(part)) == part
    plain = OutputPart(task_id=TaskId(1), attempt=1, lease_id=LeaseId(1), offset=7, content=b"x" * 100)
    assert decode(encode(plain)) == plain
