"""Segment files: their names and places, and reading them in order.

A live segment is `journal/segment-<first index>.journal`. When the snapshots and the history cover it, it is compressed
to `archive/segment-<first index>-<last index>.journal.gz`.
"""

from __future__ import annotations

import contextlib
import gzip
import re
import zlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from dgpu.journal.errors import CorruptJournal, JournalError, NewerVersion
from dgpu.journal.format import HEADER_BYTES, Record, Scan, record_at, record_bytes, record_length, scan
from dgpu.journal.journal import Group
from dgpu.wire.records import NewerSchema, UnreadableGroup, decode_group

JOURNAL_FOLDER = "journal"
ARCHIVE_FOLDER = "archive"

_LIVE = re.compile(r"segment-(\d{20})\.journal")
_ARCHIVED = re.compile(r"segment-(\d{20})-(\d{20})\.journal\.gz")
_CHUNK_BYTES = 1 << 17
_MAX_READ_BYTES = 8 << 20
_NO_HEADER = bytes(HEADER_BYTES)
_ZEROS = bytes(_CHUNK_BYTES)


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    path: Path
    first_index: int
    last_index: int | None = None  # known for archived ones


class Chain(msgspec.Struct, frozen=True, kw_only=True):
    """Consecutive segments without a gap; the last one is being written."""

    segments: tuple[Segment, ...]
    after_index: int  # groups up to here are skipped


def live_name(first_index: int) -> str:
    return f"segment-{first_index:020}.journal"


def archived_name(first_index: int, last_index: int) -> str:
    return f"segment-{first_index:020}-{last_index:020}.journal.gz"


def live_segments(directory: Path) -> list[Segment]:
    folder = directory / JOURNAL_FOLDER
    found = [(path, _LIVE.fullmatch(path.name)) for path in _entries(folder)]
    segments = [Segment(path=path, first_index=int(name[1])) for path, name in found if name]
    return sorted(segments, key=lambda segment: segment.first_index)


def archived_segments(directory: Path) -> list[Segment]:
    folder = directory / ARCHIVE_FOLDER
    found = [(path, _ARCHIVED.fullmatch(path.name)) for path in _entries(folder)]
    segments = [
        Segment(path=path, first_index=int(name[1]), last_index=int(name[2])) for path, name in found if name
    ]
    return sorted(segments, key=lambda segment: segment.first_index)


def all_segments(directory: Path) -> list[Segment]:
    """An archived copy is written before the live file is removed, so both may exist: the live one is cheaper."""
    archived, live = archived_segments(directory), live_segments(directory)
    by_first = {segment.first_index: segment for segment in (*archived, *live)}
    return [by_first[first_index] for first_index in sorted(by_first)]


def chain(directory: Path, after_index: int, *, active: Segment | None = None) -> Chain:
    """The segments that contain every group after `after_index`. A gap is refused.

    `active`: the segment being written, which belongs to the chain even if it lost its name.
    """
    by_first = {segment.first_index: segment for segment in all_segments(directory)}
    if active is not None:
        by_first = {first: one for first, one in by_first.items() if first < active.first_index}
        by_first[active.first_index] = active
    wanted: list[Segment] = []
    for first_index in sorted(by_first, reverse=True):
        wanted.append(by_first[first_index])
        if first_index <= after_index + 1:
            break
    wanted.reverse()
    known = after_index  # up to here, no group is missing; the end of a live segment is in its records only
    for segment in wanted:
        if segment.first_index > known + 1:
            lost = f"groups {known + 1} to {segment.first_index - 1} are in no segment"
            raise CorruptJournal(str(segment.path), 0, lost)
        known = max(known, segment.first_index - 1 if segment.last_index is None else segment.last_index)
        if segment.last_index is None:
            break
    return Chain(segments=tuple(wanted), after_index=after_index)


def read_segment(segment: Segment) -> bytes:
    try:
        content = segment.path.read_bytes()
    except FileNotFoundError:
        # The follower has just compressed it.
        moved = _archived_twin(segment)
        if moved is None:
            raise
        segment, content = moved, moved.path.read_bytes()
    if segment.last_index is None:
        return content
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise CorruptJournal(str(segment.path), 0, f"cannot be unpacked: {error}") from error


def scan_segment(segment: Segment, *, least_epoch: int = 0) -> Scan:
    """Most of a preallocated file may still be zeros. If its records end cleanly, they are read without the zeros,
    which is five times as fast; otherwise the whole segment is read.
    """
    file, first_index = str(segment.path), segment.first_index
    if segment.last_index is None:
        with contextlib.suppress(FileNotFoundError, CorruptJournal):
            content = _content_of(segment.path)
            result = scan(content, file=file, first_index=first_index, least_epoch=least_epoch)
            if not result.torn_bytes:
                return result
    return scan(read_segment(segment), file=file, first_index=first_index, least_epoch=least_epoch)


def scans(
    segments: tuple[Segment, ...], *, scanned_last: Scan | None = None
) -> Iterator[tuple[Segment, Scan]]:
    """Scans segments in order. Only the last one may end torn, and none may be missing."""
    expected, epoch = (segments[0].first_index if segments else 1), 0
    for number, segment in enumerate(segments):
        is_last = number == len(segments) - 1
        if segment.first_index != expected:
            raise CorruptJournal(
                str(segment.path),
                0,
                f"begins with group {segment.first_index}, but group {expected} is missing",
            )
        result = (
            scanned_last if is_last and scanned_last is not None else scan_segment(segment, least_epoch=epoch)
        )
        if result.torn_bytes and not is_last:
            why = f"group {expected + len(result.records)} is damaged; later segments exist"
            raise CorruptJournal(str(segment.path), result.end, why)
        yield segment, result
        if result.records:
            expected, epoch = expected + len(result.records), result.records[-1].epoch


def first_at(segment: Segment) -> int | None:
    """The time of the segment's first group, from the group itself. None: it cannot be read."""
    try:
        with segment.path.open("rb") as raw:
            file = raw if segment.last_index is None else gzip.GzipFile(fileobj=raw)
            header = file.read(HEADER_BYTES)
            length = record_length(header)
            content = header + file.read((length or HEADER_BYTES) - HEADER_BYTES)
        record = record_at(memoryview(content), 0)
        return None if record is None else group_of(record, str(segment.path)).events[0].at
    except (OSError, EOFError, zlib.error, JournalError):
        return None


def group_of(record: Record, file: str) -> Group:
    try:
        events = decode_group(record.payload, record.schema)
    except NewerSchema as error:
        raise NewerVersion(file, f"group {record.index} is {error}") from error
    except UnreadableGroup as error:
        raise CorruptJournal(file, record.offset, f"group {record.index} cannot be read: {error}") from error
    return Group(index=record.index, epoch=record.epoch, events=events)


class StoredGroups:
    """Groups of a chain, decoded during iteration, so that a long archive need not fit in memory."""

    def __init__(self, wanted: Chain, *, scanned_last: Scan | None = None) -> None:
        self._wanted = wanted
        self._scanned_last = scanned_last

    def __iter__(self) -> Iterator[Group]:
        for segment, result in scans(self._wanted.segments, scanned_last=self._scanned_last):
            for record in result.records:
                if record.index > self._wanted.after_index:
                    yield group_of(record, str(segment.path))


class JournalTail:
    """Reads live segments while a scheduler writes them, but never beyond the committed index."""

    def __init__(self, directory: Path, *, after_index: int) -> None:
        self._directory = directory
        self._index = after_index
        self._segment: Segment | None = None
        self._offset = 0

    def read(self, *, upto_index: int, max_groups: int) -> list[Group]:
        """The next groups, at most `max_groups` and about 8 MiB of them; empty when `upto_index` is reached."""
        if self._segment is None and self._index < upto_index:
            self._find_place()
        groups: list[Group] = []
        read_bytes = 0
        while self._segment is not None and self._index < upto_index and len(groups) < max_groups:
            if read_bytes >= _MAX_READ_BYTES:
                break
            before = self._offset
            found = self._read_chunk(self._segment, upto_index, max_groups - len(groups))
            groups += found
            read_bytes += self._offset - before
            if not found:
                self._turn_over(self._segment)
        return groups

    def _find_place(self) -> None:
        """The first read starts inside a segment: skips known groups."""
        segment = next(
            (one for one in reversed(live_segments(self._directory)) if one.first_index <= self._index + 1),
            None,
        )
        if segment is None:
            raise CorruptJournal(
                str(self._directory / JOURNAL_FOLDER), 0, f"group {self._index + 1} is in no segment"
            )
        self._segment, self._offset = segment, 0
        wanted, self._index = self._index, segment.first_index - 1
        while self._index < wanted:
            if not self._read_chunk(segment, wanted, wanted - self._index, decode=False):
                raise CorruptJournal(str(segment.path), self._offset, f"group {self._index + 1} is missing")

    def _turn_over(self, segment: Segment) -> None:
        path = segment.path.with_name(live_name(self._index + 1))
        if not path.exists() or path == segment.path:
            why = f"group {self._index + 1} is committed, but is neither here nor in the next segment"
            raise CorruptJournal(str(segment.path), self._offset, why)
        self._segment, self._offset = Segment(path=path, first_index=self._index + 1), 0

    def _read_chunk(
        self, segment: Segment, upto_index: int, max_groups: int, *, decode: bool = True
    ) -> list[Group]:
        groups: list[Group] = []
        size = _CHUNK_BYTES
        if not segment.path.exists():
            return groups  # read to its end, and compressed since
        with segment.path.open("rb") as file:
            while not groups:
                file.seek(self._offset)
                content = memoryview(file.read(size))
                place = 0
                while self._index < upto_index and len(groups) < max_groups:
                    record = record_at(content, place)
                    if record is None or record.index != self._index + 1:
                        break
                    if decode:
                        groups.append(group_of(record, str(segment.path)))
                    else:
                        groups.append(Group(index=record.index, epoch=record.epoch, events=[]))
                    place += record_bytes(len(record.payload))
                    self._index = record.index
                self._offset += place
                if len(content) < size or content[place : place + HEADER_BYTES] == _NO_HEADER:
                    break  # the end of the file, or of its records
                size *= 8  # a record larger than the chunk
        return groups


def _content_of(path: Path) -> bytes:
    """The content without most of the zeros at the end, read in pieces to save memory."""
    pieces: list[bytes] = []
    last = 0
    piece = bytearray(_CHUNK_BYTES)
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(piece):
            if count == len(piece) and piece == _ZEROS:
                pieces.append(_ZEROS)
            else:
                pieces.append(bytes(memoryview(piece)[:count]))
                last = len(pieces)
    return b"".join(pieces[:last])


def _archived_twin(segment: Segment) -> Segment | None:
    directory = segment.path.parent.parent
    twins = [one for one in archived_segments(directory) if one.first_index == segment.first_index]
    return twins[0] if twins else None


def _entries(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []
