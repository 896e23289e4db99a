"""Bytes of a journal segment: encoding and scanning, without I/O.

A segment is a sequence of records, then zeros. A record is a header of 40 bytes and a payload, padded with zeros to a
multiple of 8:

    offset  0  magic "DGJ1"          24  payload length
            4  schema                28  CRC-32 of the payload and its filling
            6  zero                  32  zero
            8  epoch                 36  CRC-32 of the header up to here
           16  index

Every byte of a record is under a CRC. One group of events is one record; it was written and synced as a whole before
the next one began. So damage in front of a later record cannot be an interrupted write.
"""

from __future__ import annotations

import struct
import zlib

import msgspec

from dgpu.journal.errors import CorruptJournal

MAGIC = b"DGJ1"
HEADER_BYTES = 40
ALIGNMENT = 8
MAX_PAYLOAD_BYTES = 1 << 30

_FIELDS = struct.Struct("<4sHHQQIII")
_CRC = struct.Struct("<I")
_ZEROS = bytes(1 << 16)


class Record(msgspec.Struct, frozen=True, gc=False):
    schema: int
    epoch: int
    index: int
    payload: bytes
    offset: int  # in its segment


class Scan(msgspec.Struct, frozen=True):
    records: list[Record]
    end: int  # the next record belongs here
    torn_bytes: int  # from `end` to the last byte that is not zero; 0: the segment ends cleanly


def record_bytes(payload_bytes: int) -> int:
    """Size of a payload with its header and padding."""
    return HEADER_BYTES + payload_bytes + -payload_bytes % ALIGNMENT


def encode_record(*, schema: int, epoch: int, index: int, payload: bytes) -> bytes:
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise ValueError(f"a group of {len(payload)} bytes is too large for a record")
    filling = bytes(-len(payload) % ALIGNMENT)
    body_crc = zlib.crc32(filling, zlib.crc32(payload))
    fields = _FIELDS.pack(MAGIC, schema, 0, epoch, index, len(payload), body_crc, 0)
    return b"".join((fields, _CRC.pack(zlib.crc32(fields)), payload, filling))


def record_at(view: memoryview, offset: int) -> Record | None:
    """The record that starts at `offset`, or None if there is no complete, undamaged record."""
    header = _header_at(view, offset)
    if header is None:
        return None
    schema, epoch, index, payload_bytes, body_crc = header
    start = offset + HEADER_BYTES
    end = offset + record_bytes(payload_bytes)
    if end > len(view) or zlib.crc32(view[start:end]) != body_crc:
        return None
    return Record(schema, epoch, index, bytes(view[start : start + payload_bytes]), offset)


def record_length(header: bytes) -> int | None:
    """Bytes of the whole record that begins with this header, or None if the header is damaged."""
    found = _header_at(memoryview(header), 0)
    return None if found is None else record_bytes(found[3])


def scan(segment: bytes | memoryview, *, file: str, first_index: int, least_epoch: int = 0) -> Scan:
    """All records of a segment, in order.

    A bad record with nothing valid after it is a torn tail: the result has the end of the records and the number of
    bytes after it. Any other damage raises CorruptJournal.
    """
    view = memoryview(segment)
    records: list[Record] = []
    offset, expected, epoch = 0, first_index, least_epoch
    while (record := record_at(view, offset)) is not None:
        if record.index != expected:
            raise CorruptJournal(file, offset, f"expected record {expected}, found record {record.index}")
        if record.epoch < epoch:
            raise CorruptJournal(
                file, offset, f"epoch falls from {epoch} to {record.epoch} at record {expected}"
            )
        records.append(record)
        offset += record_bytes(len(record.payload))
        expected, epoch = expected + 1, record.epoch
    torn_bytes = _length_without_zeros(view, offset)
    if torn_bytes:
        _refuse_if_a_record_follows(view, offset, expected, epoch, file)
    return Scan(records, offset, torn_bytes)


def _header_at(view: memoryview, offset: int) -> tuple[int, int, int, int, int] | None:
    if offset + HEADER_BYTES > len(view):
        return None
    magic, schema, zero, epoch, index, payload_bytes, body_crc, reserved = _FIELDS.unpack_from(view, offset)
    if magic != MAGIC or zero or reserved or payload_bytes > MAX_PAYLOAD_BYTES:
        return None
    fields_end = offset + HEADER_BYTES - _CRC.size
    if zlib.crc32(view[offset:fields_end]) != _CRC.unpack_from(view, fields_end)[0]:
        return None
    return schema, epoch, index, payload_bytes, body_crc


def _refuse_if_a_record_follows(view: memoryview, bad: int, expected: int, epoch: int, file: str) -> None:
    """Checks every aligned offset after a bad record; its length field is not trusted.

    Only the header decides: the header of a later record is written only after this record was synced. An index or
    epoch that cannot follow is chance, or text inside a payload (ours hold no NUL, which each header does).
    """
    max_index = expected + (len(view) - bad) // HEADER_BYTES
    content = bytes(view[bad:])
    place = content.find(MAGIC, 1)
    while place >= 0:
        if (bad + place) % ALIGNMENT == 0:
            header = _header_at(view, bad + place)
            if header is not None and header[1] >= epoch and expected <= header[2] <= max_index:
                raise CorruptJournal(
                    file,
                    bad,
                    f"record {expected} is damaged; record {header[2]} follows at offset {bad + place}, "
                    f"so this is no interrupted write",
                )
        place = content.find(MAGIC, place + 1)


def _length_without_zeros(view: memoryview, start: int) -> int:
    """Bytes from `start` to the last one that is not zero."""
    end = len(view)
    while end > start:
        size = min(len(_ZEROS), end - start)
        block = bytes(view[end - size : end])  # a view would be compared number by number, 20 times slower
        if block != _ZEROS[:size]:
            return end - size + len(block.rstrip(b"\0")) - start
        end -= size
    return 0
