"""The journal as files on one disk. What `append` returned from survives a power cut."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from pathlib import Path

from dgpu.journal.durable import make_folder, sync_folder, write_all, write_file
from dgpu.journal.errors import CorruptJournal, JournalBroken, JournalError
from dgpu.journal.format import HEADER_BYTES, Scan, encode_record
from dgpu.journal.journal import Recovery, Room, TornTail
from dgpu.journal.lock import FolderLock
from dgpu.journal.segments import (
    ARCHIVE_FOLDER,
    JOURNAL_FOLDER,
    Segment,
    StoredGroups,
    archived_segments,
    chain,
    live_segments,
    scan_segment,
)
from dgpu.journal.snapshot import Snapshot, load_newest
from dgpu.journal.spares import NEXT_NAME, Spares
from dgpu.wire.records import SCHEMA

SEGMENT_BYTES = 32 << 20
RESERVE_BYTES = 8 << 20
_LEAST_BYTES = 4096
_MARGIN_BYTES = 1 << 20  # a group of reports stays below it


class FileJournal:
    """Appends come from one thread at a time, each to a file that was preallocated by another."""

    def __init__(self, directory: Path, *, lock: FolderLock, segment_bytes: int, reserve_bytes: int) -> None:
        self._directory = directory
        self._folder = directory / JOURNAL_FOLDER
        self._lock = lock
        self._margin_bytes = min(_MARGIN_BYTES, reserve_bytes // 4)
        self._spares = Spares(self._folder, segment_bytes=segment_bytes, reserve_bytes=reserve_bytes)
        self._descriptor = -1
        self._offset = 0
        self._capacity = 0
        self._index = 0
        self._epoch = 0
        self._broken = False

    @classmethod
    def open(
        cls, directory: Path | str, *, segment_bytes: int = SEGMENT_BYTES, reserve_bytes: int = RESERVE_BYTES
    ) -> FileJournal:
        """Take the directory for this process. Raises JournalLocked when another scheduler has it."""
        if min(segment_bytes, reserve_bytes) < _LEAST_BYTES:
            raise ValueError(f"segments and reserve need at least {_LEAST_BYTES} bytes")
        directory = Path(directory)
        lock = FolderLock(directory)
        try:
            make_folder(directory / JOURNAL_FOLDER)
            make_folder(directory / ARCHIVE_FOLDER)
            sync_folder(directory)
        except BaseException:
            lock.close()
            raise
        return cls(directory, lock=lock, segment_bytes=segment_bytes, reserve_bytes=reserve_bytes)

    @property
    def room(self) -> Room:
        if not self._spares.lacks:
            return Room.OK  # also while the next segment is being made
        if self._spares.has_reserve or self._capacity - self._offset >= self._margin_bytes:
            return Room.RESERVE
        return Room.NONE

    @property
    def room_lacks(self) -> str:
        """Why there is no room, for people; empty when there is."""
        return self._spares.lacks

    @property
    def sure_payload_bytes(self) -> int:
        """A payload of this size can be appended now without asking the disk for more."""
        return max(self._capacity - self._offset, self._spares.largest_bytes) - HEADER_BYTES

    def recover(self) -> Recovery:
        """The newest sound snapshot and all that follows it; a torn final group is cut, kept aside and reported."""
        if self._descriptor >= 0:
            raise ValueError("recover is called once")
        snapshot, notes = load_newest(self._directory)
        segments = live_segments(self._directory)
        if not segments:
            self._refuse_missing_journal(snapshot)
            return self._begin(snapshot, notes)
        last = segments[-1]
        result = scan_segment(last)
        self._index = last.first_index - 1 + len(result.records)
        self._epoch = _last_epoch(segments, result, snapshot)
        if self._index < snapshot.index:
            why = f"the journal ends with group {self._index}, but {snapshot.file} stands at {snapshot.index}"
            raise CorruptJournal(str(last.path), result.end, why)
        groups = StoredGroups(chain(self._directory, snapshot.index), scanned_last=result)
        cut = self._cut_tail(last, result) if result.torn_bytes else None
        self._continue(last.path, result.end)
        self._sync_what_was_read()
        return Recovery(
            snapshot_state=snapshot.state,
            snapshot_index=snapshot.index,
            groups=groups,
            index=self._index,
            epoch=self._epoch,
            cut=cut,
            notes=notes,
        )

    def append(self, epoch: int, index: int, payload: bytes) -> None:
        if self._descriptor < 0:
            raise ValueError("recover comes before append")
        if index != self._index + 1 or epoch < self._epoch:
            raise ValueError(f"group {index} of epoch {epoch} cannot follow {self._index} of {self._epoch}")
        record = encode_record(schema=SCHEMA, epoch=epoch, index=index, payload=payload)
        if self._broken:
            raise JournalBroken("an earlier write to the journal failed")
        try:
            if self._offset + len(record) > self._capacity:
                self._turn_over(first_index=index, need_bytes=len(record))
            write_all(self._descriptor, record, self._offset)
            os.fdatasync(self._descriptor)
        except OSError as error:
            self._broken = True
            raise JournalBroken(f"group {index} could not be made durable: {error}") from error
        self._offset += len(record)
        self._index, self._epoch = index, epoch

    def prepare(self) -> None:
        if not (self._spares.has_next and self._spares.has_reserve):
            self._spares.make()

    def close(self) -> None:
        self._spares.wait()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        self._lock.close()

    def _begin(self, snapshot: Snapshot, notes: tuple[str, ...]) -> Recovery:
        """A new journal: the first segment has to be there before anything is promised."""
        self._spares.make()
        if not self._spares.has_next:
            raise JournalError(f"no room for a journal in {self._folder}: {self._spares.lacks}")
        path = self._spares.take(first_index=1, need_bytes=_LEAST_BYTES)
        self._continue(path, 0)
        return Recovery(
            snapshot_state=snapshot.state, snapshot_index=0, groups=(), index=0, epoch=0, notes=notes
        )

    def _refuse_missing_journal(self, snapshot: Snapshot) -> None:
        archived = archived_segments(self._directory)
        if snapshot.index or archived:
            known = max([snapshot.index, *(segment.last_index or 0 for segment in archived)])
            why = f"holds no segment, but groups up to {known} were written"
            raise CorruptJournal(str(self._folder), 0, why)

    def _continue(self, path: Path, offset: int) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._descriptor, self._offset, self._capacity = descriptor, offset, os.fstat(descriptor).st_size
        self._spares.make_in_thread(lambda: None)

    def _sync_what_was_read(self) -> None:
        """A killed process may have written a last group and not synced it: from now on it counts."""
        try:
            os.fdatasync(self._descriptor)
        except OSError as error:
            raise JournalBroken(f"the journal that was read could not be made durable: {error}") from error

    def _turn_over(self, *, first_index: int, need_bytes: int) -> None:
        path = self._spares.take(first_index=first_index, need_bytes=need_bytes)
        full, used_bytes = self._descriptor, self._offset
        self._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._offset, self._capacity = 0, os.fstat(self._descriptor).st_size
        self._spares.make_in_thread(lambda: _seal(full, used_bytes))

    def _cut_tail(self, segment: Segment, result: Scan) -> TornTail:
        index = self._index + 1
        torn = segment.path.read_bytes()[result.end : result.end + result.torn_bytes]
        kept = self._folder / f"torn-{index}-{time.time_ns() // 1_000_000}"
        try:
            self._keep_aside(kept, torn)
            descriptor = os.open(segment.path, os.O_RDWR | os.O_CLOEXEC)
            try:
                write_all(descriptor, bytes(len(torn)), result.end)
                os.fdatasync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise JournalBroken(f"the torn end of {segment.path} could not be cut: {error}") from error
        return TornTail(
            index=index, file=str(segment.path), offset=result.end, size_bytes=len(torn), kept_at=str(kept)
        )

    def _keep_aside(self, kept: Path, torn: bytes) -> None:
        try:
            write_file(kept, torn)
        except OSError as error:
            if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
                raise
            # The next segment is empty and can be made again; a full disk must not keep a scheduler from starting.
            (self._folder / NEXT_NAME).unlink(missing_ok=True)
            self._spares.forget_next()
            write_file(kept, torn)
        sync_folder(self._folder)


def _last_epoch(segments: list[Segment], last: Scan, snapshot: Snapshot) -> int:
    """A segment that was begun but holds nothing yet tells no epoch: the one before does, or the snapshot."""
    if last.records:
        return last.records[-1].epoch
    if len(segments) == 1:
        return snapshot.epoch
    before = segments[-2]
    records = scan_segment(before).records
    return records[-1].epoch if records else snapshot.epoch


def _seal(descriptor: int, used_bytes: int) -> None:
    """Give back the unused end. All records are durable already, so failing here harms nothing."""
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, used_bytes)
        os.fsync(descriptor)
    os.close(descriptor)
