"""Bytes of a segment: what is read is what was written, or it is refused."""

import random
import zlib

import pytest

from dgpu.journal.errors import CorruptJournal
from dgpu.journal.format import ALIGNMENT, HEADER_BYTES, encode_record, record_bytes, scan

PAYLOADS = [b"first", b"x" * 64, b"", b"a longer one " * 20, b"four", b"the last group " * 9]
REST = bytes(512)


def segment(payloads=PAYLOADS, *, first=1, epoch=1) -> bytes:
    records = [
        encode_record(schema=1, epoch=epoch, index=index, payload=payload)
        for index, payload in enumerate(payloads, start=first)
    ]
    return b"".join(records) + REST


def payloads_of(content: bytes) -> list[bytes]:
    return [record.payload for record in scan(content, file="f", first_index=1).records]


def start_of_last() -> int:
    return sum(record_bytes(len(payload)) for payload in PAYLOADS[:-1])


def end_of_last() -> int:
    return sum(record_bytes(len(payload)) for payload in PAYLOADS)


def test_what_was_written_is_read_and_the_zeros_behind_it_end_the_segment() -> None:
    result = scan(segment(), file="f", first_index=1)
    assert [record.payload for record in result.records] == PAYLOADS
    assert [record.index for record in result.records] == [1, 2, 3, 4, 5, 6]
    assert (result.end, result.torn_bytes) == (end_of_last(), 0)


def test_every_record_starts_at_a_multiple_of_eight() -> None:
    assert HEADER_BYTES % ALIGNMENT == 0
    assert all(record_bytes(size) % ALIGNMENT == 0 for size in range(40))


def test_a_segment_cut_at_any_byte_of_its_last_record_keeps_all_before_it() -> None:
    for cut in range(start_of_last() + 1, end_of_last()):
        result = scan(segment()[:cut], file="f", first_index=1)
        assert [record.payload for record in result.records] == PAYLOADS[:-1], cut
        assert result.end == start_of_last()
        assert result.torn_bytes > 0, cut


def test_a_last_record_of_which_only_the_end_reached_the_disk_is_torn() -> None:
    """Blocks of one write may reach the disk in any order."""
    content = bytearray(segment())
    content[start_of_last() : start_of_last() + HEADER_BYTES] = bytes(HEADER_BYTES)
    result = scan(bytes(content), file="f", first_index=1)
    assert len(result.records) == len(PAYLOADS) - 1
    assert result.torn_bytes > 0


@pytest.mark.parametrize("seed", range(4))
def test_a_flipped_bit_is_found_and_only_in_the_final_record_looks_like_a_torn_tail(seed: int) -> None:
    print("seed", seed)
    chance = random.Random(seed)
    content = segment()
    for _ in range(1_500):
        bit = chance.randrange(len(content) * 8)
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        if bit // 8 < start_of_last():
            with pytest.raises(CorruptJournal):
                scan(bytes(damaged), file="f", first_index=1)
        else:
            result = scan(bytes(damaged), file="f", first_index=1)
            assert result.torn_bytes > 0, bit
            kept = len(PAYLOADS) - 1 if bit // 8 < end_of_last() else len(PAYLOADS)
            assert [record.payload for record in result.records] == PAYLOADS[:kept]


def test_any_flip_in_a_length_field_does_not_hide_the_records_behind_it() -> None:
    """A length that leads far away, or into the middle of a payload, must not be followed."""
    place = 0
    for payload in PAYLOADS[:-1]:
        for bit in range(32):
            damaged = bytearray(segment())
            damaged[place + 24 + bit // 8] ^= 1 << bit % 8
            with pytest.raises(CorruptJournal) as refusal:
                scan(bytes(damaged), file="f", first_index=1)
            assert refusal.value.offset == place
        place += record_bytes(len(payload))


def test_a_wrong_length_under_a_right_header_checksum_is_refused_too() -> None:
    damaged = bytearray(segment())
    damaged[24:28] = (10_000).to_bytes(4, "little")
    damaged[36:40] = zlib.crc32(damaged[:36]).to_bytes(4, "little")
    with pytest.raises(CorruptJournal, match="record 2 follows"):
        scan(bytes(damaged), file="f", first_index=1)


def test_a_later_header_proves_corruption_even_if_its_payload_is_damaged_as_well() -> None:
    damaged = bytearray(segment(PAYLOADS[:2]))
    damaged[HEADER_BYTES] ^= 1
    damaged[record_bytes(len(PAYLOADS[0])) + HEADER_BYTES] ^= 1
    with pytest.raises(CorruptJournal):
        scan(bytes(damaged), file="f", first_index=1)


def test_text_that_looks_like_a_record_inside_a_torn_payload_is_not_one() -> None:
    """A task's command may contain anything; its index and epoch would have to be right as well."""
    forged = encode_record(schema=1, epoch=0, index=10_000_000, payload=b"forged")
    content = segment([b"first", forged * 3])[: -len(REST) - 8]
    assert payloads_of(content) == [b"first"]


@pytest.mark.parametrize("indexes", [(1, 3), (1, 1), (2, 3)])
def test_indexes_that_do_not_follow_each_other_are_refused(indexes: tuple[int, int]) -> None:
    content = b"".join(encode_record(schema=1, epoch=1, index=index, payload=b"p") for index in indexes)
    with pytest.raises(CorruptJournal, match=r"expected record \d, found record \d"):
        scan(content, file="f", first_index=1)


def test_a_falling_epoch_is_refused() -> None:
    content = b"".join(
        encode_record(schema=1, epoch=epoch, index=i, payload=b"p") for i, epoch in ((1, 5), (2, 4))
    )
    with pytest.raises(CorruptJournal, match="epoch falls"):
        scan(content, file="f", first_index=1)


def test_the_refusal_names_file_and_offset() -> None:
    damaged = bytearray(segment())
    damaged[record_bytes(len(PAYLOADS[0])) + 3] ^= 4
    with pytest.raises(CorruptJournal) as refusal:
        scan(bytes(damaged), file="segment-1", first_index=1)
    assert (refusal.value.file, refusal.value.offset) == ("segment-1", record_bytes(len(PAYLOADS[0])))
