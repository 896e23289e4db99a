"""The file format of packs: entries of output, each with a header, one after the other.

An entry is a part of one attempt's output. The last part of an attempt contains the total size, so missing parts can be
named. Packs of the first format have one entry per attempt: its last bytes.
"""

from __future__ import annotations

import contextlib
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from dgpu.core.model.ids import LeaseId, NodeId, TaskId

MAX_ENTRY_BYTES = 4 << 20
MAX_NODE_BYTES = 1 << 10

_MAGIC_1 = b"DGO1"
_HEADER_1 = struct.Struct("<4sQQIQIII")  # magic, task, lease, attempt, offset, raw bytes, packed bytes, CRC
_MAGIC = b"DGO2"
_HEADER = struct.Struct(
    "<4sQQIQIIIBQQH"
)  # as above; then whether it is the last part, end, kept until, bytes of the node's name
_HEADER_CRC = struct.Struct("<I")
_FRONT_1_BYTES = _HEADER_1.size + _HEADER_CRC.size
FRONT_BYTES = _HEADER.size + _HEADER_CRC.size


class OutputPart(msgspec.Struct, frozen=True, kw_only=True):
    task_id: TaskId
    attempt: int
    lease_id: LeaseId
    node_id: NodeId = NodeId("")  # empty: unknown
    offset: int  # of content[0] in the whole output of the attempt
    content: bytes
    end: int = -1  # total size of the attempt's output, in its last part; -1: more parts follow
    kept_until_ms: int = 0  # how long the node keeps all of it, at most, in the last part; 0: not at all
    marks: bytes = b""  # agent.marks: when the content was written; empty: not known

    @property
    def is_last(self) -> bool:
        return self.end >= 0


class _Front(msgspec.Struct, frozen=True):
    part: OutputPart  # without its content
    raw_bytes: int
    packed_bytes: int
    crc: int
    body_at: int  # in the entry
    node_bytes: int

    @property
    def entry_bytes(self) -> int:
        return self.body_at + self.node_bytes + self.packed_bytes


def encode(part: OutputPart) -> bytes:
    packed = zlib.compress(part.content, 1)
    if part.marks:
        packed += zlib.compress(part.marks, 1)  # a second stream, which earlier versions do not read
    node = part.node_id.encode()[:MAX_NODE_BYTES]
    body = node + packed
    front = _HEADER.pack(
        _MAGIC,
        part.task_id,
        part.lease_id,
        part.attempt,
        part.offset,
        len(part.content),
        len(packed),
        zlib.crc32(body),
        part.is_last,
        max(0, part.end),
        part.kept_until_ms,
        len(node),
    )
    return b"".join((front, _HEADER_CRC.pack(zlib.crc32(front)), body))


def decode(content: bytes) -> OutputPart | None:
    """The entry at the beginning of `content`; None: it is truncated or damaged."""
    front = _front(content)
    if front is None or front.raw_bytes > MAX_ENTRY_BYTES:
        return None
    body = content[front.body_at : front.entry_bytes]
    if len(body) < front.node_bytes + front.packed_bytes or zlib.crc32(body) != front.crc:
        return None
    unpacking = zlib.decompressobj()
    raw = unpacking.decompress(body[front.node_bytes :], MAX_ENTRY_BYTES)
    if len(raw) != front.raw_bytes:
        return None
    node = NodeId(body[: front.node_bytes].decode(errors="replace"))
    marks = zlib.decompressobj().decompress(unpacking.unused_data, MAX_ENTRY_BYTES)
    return msgspec.structs.replace(front.part, content=raw, node_id=node, marks=marks)


def scan(path: Path, start: int) -> Iterator[tuple[int, int, OutputPart]]:
    """Place, end and part of each intact entry from `start` on, up to the first truncated or damaged one.

    Contents are checked: after a power cut any page of a batch may be missing.
    """
    place = start
    with path.open("rb") as file:
        file.seek(place)
        while (front := _front(head := file.read(FRONT_BYTES))) is not None:
            content = head + file.read(max(0, front.entry_bytes - len(head)))
            part = decode(content)
            if part is None:
                return
            yield place, place + front.entry_bytes, part
            place += front.entry_bytes
            file.seek(place)


def _front(content: bytes) -> _Front | None:
    if content[:4] == _MAGIC_1:
        return _front_1(content)
    if len(content) < FRONT_BYTES or content[:4] != _MAGIC:
        return None
    if _HEADER_CRC.unpack_from(content, _HEADER.size)[0] != zlib.crc32(content[: _HEADER.size]):
        return None
    fields = _HEADER.unpack_from(content)
    (
        _,
        task_id,
        lease_id,
        attempt,
        offset,
        raw_bytes,
        packed_bytes,
        crc,
        is_last,
        end,
        until_ms,
        node_bytes,
    ) = fields
    part = OutputPart(
        task_id=TaskId(task_id),
        attempt=attempt,
        lease_id=LeaseId(lease_id),
        offset=offset,
        content=b"",
        end=end if is_last else -1,
        kept_until_ms=until_ms,
    )
    return _Front(part, raw_bytes, packed_bytes, crc, FRONT_BYTES, node_bytes)


def _front_1(content: bytes) -> _Front | None:
    if len(content) < _FRONT_1_BYTES:
        return None
    if _HEADER_CRC.unpack_from(content, _HEADER_1.size)[0] != zlib.crc32(content[: _HEADER_1.size]):
        return None
    _, task_id, lease_id, attempt, offset, raw_bytes, packed_bytes, crc = _HEADER_1.unpack_from(content)
    part = OutputPart(
        task_id=TaskId(task_id),
        attempt=attempt,
        lease_id=LeaseId(lease_id),
        offset=offset,
        content=b"",
        end=offset + raw_bytes,
    )
    return _Front(part, raw_bytes, packed_bytes, crc, _FRONT_1_BYTES, 0)


def copy_pack(descriptor: int, path: Path) -> int:
    """A new file with the content of an open pack whose file was deleted. Returns its descriptor. Raises OSError."""
    flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    fresh = path.with_suffix(".new")
    copied = os.open(fresh, flags, 0o600)
    try:
        place = 0
        while content := os.pread(descriptor, 1 << 20, place):
            place += os.pwrite(copied, content, place)
        os.fsync(copied)
        fresh.replace(path)
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError:
        os.close(copied)
        raise
    return copied


def write_all(descriptor: int, content: bytes, offset: int) -> None:
    view = memoryview(content)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written


def set_time(descriptor: int, now_ms: int) -> None:
    """Sets the time of the journal, not of the wall clock: a wrong wall clock must not age a pack."""
    with contextlib.suppress(OSError):
        os.utime(descriptor, ns=(now_ms * 1_000_000, now_ms * 1_000_000))
