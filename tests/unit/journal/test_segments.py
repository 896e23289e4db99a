"""Reading a preallocated segment: what its empty end may hide must not be hidden."""

from pathlib import Path

import pytest

from dgpu.journal.errors import CorruptJournal
from dgpu.journal.format import encode_record, scan
from dgpu.journal.segments import Segment, read_segment, scan_segment

PREALLOCATED = 1 << 20


def segment_of(folder: Path, *payloads: bytes, size: int = PREALLOCATED) -> Segment:
    records = b"".join(
        encode_record(schema=1, epoch=1, index=index, payload=payload)
        for index, payload in enumerate(payloads, 1)
    )
    path = folder / "segment-00000000000000000001.journal"
    path.write_bytes(records.ljust(size, b"\0"))
    return Segment(path=path, first_index=1)


@pytest.mark.parametrize(
    "payloads",
    [
        (),
        (b"one", b"two"),
        (b"x" * 300_000, b"behind it"),
        (b"x" + bytes(300_000), b"behind a long run of zeros"),
        (b"first", b"x" + bytes(300_000)),  # its end looks like the empty part of the file
        (b"first", bytes(300_000)),
    ],
)
@pytest.mark.parametrize("size", [0, PREALLOCATED])
def test_a_segment_is_read_alike_with_and_without_its_empty_end(tmp_path, payloads, size) -> None:
    segment = segment_of(tmp_path, *payloads, size=size)
    found = scan_segment(segment)
    assert found == scan(read_segment(segment), file=str(segment.path), first_index=1)
    assert tuple(record.payload for record in found.records) == payloads


def test_a_torn_end_is_still_torn(tmp_path) -> None:
    segment = segment_of(tmp_path, b"whole", b"y" * 200_000)
    content = bytearray(segment.path.read_bytes())
    content[150_000:] = bytes(len(content) - 150_000)
    segment.path.write_bytes(content)
    found = scan_segment(segment)
    assert [record.payload for record in found.records] == [b"whole"]
    assert found.torn_bytes == 150_000 - found.end


def test_a_record_far_behind_a_damaged_one_is_still_corruption(tmp_path) -> None:
    segment = segment_of(tmp_path, b"damaged", b"z" * 400_000, b"sound")
    content = bytearray(segment.path.read_bytes())
    content[44] ^= 1
    segment.path.write_bytes(content)
    with pytest.raises(CorruptJournal):
        scan_segment(segment)


def test_a_segment_that_is_gone_says_so(tmp_path) -> None:
    (tmp_path / "journal").mkdir()
    with pytest.raises(FileNotFoundError):
        scan_segment(Segment(path=tmp_path / "journal" / "segment-1.journal", first_index=1))
