"""The journal as files on one disk. An append that returned survives a power failure."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from pathlib import Path

from dgpu.core.state import ClusterState
from dgpu.journal.active import NO_ROOM, ActiveSegment
from dgpu.journal.durable import make_folder, overwrite_in_place, sync_folder, write_file
from dgpu.journal.errors import CorruptJournal, JournalBroken, JournalError, LostTail, NotWritten
from dgpu.journal.format import HEADER_BYTES, Scan, encode_record, scan
from dgpu.journal.journal import Recovery, Room, Sighting, TornTail
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
from dgpu.journal.snapshot import SNAPSHOT_NAME, Snapshot, load_newest, snapshot_index
from dgpu.journal.spares import NEXT_NAME, Spares
from dgpu.wire.records import SCHEMA

SEGMENT_BYTES = 32 << 20
RESERVE_BYTES = 8 << 20
_LEAST_BYTES = 4096
_MARGIN_BYTES = 1 << 20  # a group of reports stays below it


class FileJournal:
    """One thread at a time appends, to files that another thread has preallocated."""

    def __init__(self, directory: Path, *, lock: FolderLock, segment_bytes: int, reserve_bytes: int) -> None:
        self._directory = directory
        self._folder = directory / JOURNAL_FOLDER
        self._lock = lock
        self._margin_bytes = min(_MARGIN_BYTES, reserve_bytes // 4)
        self._plenty_bytes = segment_bytes // 4
        self._spares = Spares(self._folder, segment_bytes=segment_bytes, reserve_bytes=reserve_bytes)
        self._active: ActiveSegment | None = None
        self._sealed: list[Segment] = []  # live segments that may still be needed, with their last index
        self._index = 0
        self._epoch = 0
        self._broken = False
        self._unsynced_from = -1  # offset of the last record read, which may not be on the disk
        self._stuck = ""  # why the last group was not written; empty: it was
        self._stuck_for_room = False
        self._had_snapshot = False
        self._relinks_told = 0

    @classmethod
    def open(
        cls, directory: Path | str, *, segment_bytes: int = SEGMENT_BYTES, reserve_bytes: int = RESERVE_BYTES
    ) -> FileJournal:
        """Locks the directory for this process. Raises JournalLocked if another scheduler uses it."""
        if min(segment_bytes, reserve_bytes) < _LEAST_BYTES:
            raise ValueError(f"segments and reserve need at least {_LEAST_BYTES} bytes")
        directory = Path(directory)
        lock = FolderLock(directory)
        try:
            overwrite_in_place(directory)
            make_folder(directory / JOURNAL_FOLDER)
            overwrite_in_place(directory / JOURNAL_FOLDER)
            make_folder(directory / ARCHIVE_FOLDER)
            sync_folder(directory)
        except BaseException:
            lock.close()
            raise
        return cls(directory, lock=lock, segment_bytes=segment_bytes, reserve_bytes=reserve_bytes)

    @property
    def room(self) -> Room:
        if self._stuck:
            return Room.NONE
        if not self._spares.lacks:
            return Room.OK  # also while the next segment is being created
        free_bytes = self._active.free_bytes if self._active else 0
        if not self._spares.lacks_room and self._spares.has_reserve and free_bytes >= self._plenty_bytes:
            return Room.OK  # probably too few descriptors: some may be free again before the segment is full
        if self._spares.has_reserve or free_bytes >= self._margin_bytes:
            return Room.RESERVE
        return Room.NONE

    @property
    def room_lacks(self) -> str:
        """Why there is no room, for people; empty: there is room."""
        return self._stuck or self._spares.lacks

    @property
    def trouble(self) -> str:
        """Why nothing can be stored although the disk may have room: missing files, or too few descriptors."""
        if self._stuck:
            return "" if self._stuck_for_room else self._stuck
        return "" if self._spares.lacks_room or self.room is Room.OK else self._spares.lacks

    @property
    def sure_payload_bytes(self) -> int:
        """A payload of this size can be appended now without asking the disk for more."""
        free_bytes = self._active.free_bytes if self._active else 0
        return max(free_bytes, self._spares.largest_bytes) - HEADER_BYTES

    def recover(self, *, least_index: int = 0) -> Recovery:
        """The newest valid snapshot and all later groups; a torn final group is cut, kept in another file and reported.

        `least_index`: groups up to it were acknowledged. If they are missing, LostTail is raised
        before anything is changed.
        """
        if self._active is not None:
            raise ValueError("recover is called once")
        snapshot, notes = load_newest(self._directory)
        segments = live_segments(self._directory)
        if not segments:
            self._refuse_missing_journal(snapshot, least_index)
            return self._begin(snapshot, notes)
        last = segments[-1]
        result = scan_segment(last)
        self._index = last.first_index - 1 + len(result.records)
        self._epoch = _last_epoch(segments, result, snapshot)
        known = max(snapshot.index, least_index)
        if self._index < known:
            by = f"{snapshot.file} stands at" if known == snapshot.index else "history or mark know group"
            why = f"the journal ends with group {self._index}, but {by} {known}"
            raise LostTail(str(last.path), result.end, why, index=self._index, known=known)
        groups = StoredGroups(chain(self._directory, snapshot.index), scanned_last=result)
        self._continue(last.path, result.end)
        self._sealed = _with_ends(segments)
        if result.records:
            self._unsynced_from = result.records[-1].offset
        cut = self._cut_tail(last, result) if result.torn_bytes else None
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
        record = encode_record(schema=SCHEMA, epoch=epoch, index=index, payload=payload)
        self.append_record(epoch, index, record)

    def append_record(self, epoch: int, index: int, record: bytes) -> None:
        """The record is encoded already, perhaps by another scheduler in an older schema."""
        if self._active is None:
            raise ValueError("recover comes before append")
        if index != self._index + 1 or epoch < self._epoch:
            raise ValueError(f"group {index} of epoch {epoch} cannot follow {self._index} of {self._epoch}")
        if self._broken:
            raise JournalBroken("an earlier write to the journal failed")
        try:
            self._clear_the_way()
            if len(record) > self._active.free_bytes:
                self._turn_over(first_index=index, need_bytes=len(record))
            self._active.write(record)
        except NotWritten as error:
            self._stuck, self._stuck_for_room = str(error), not error.gone
            raise
        except (OSError, JournalBroken) as error:
            self._broken = True
            raise JournalBroken(f"group {index} could not be made durable: {error}") from error
        self._index, self._epoch = index, epoch

    def prepare(self) -> None:
        """Tries again to get room. Raises JournalBroken if the disk fails in another way."""
        if self._active is not None and self._stuck:
            try:
                self._clear_the_way(room_bytes=self._margin_bytes)
            except NotWritten as error:
                self._stuck, self._stuck_for_room = str(error), not error.gone
                return
            except (OSError, JournalBroken) as error:
                self._broken = True
                raise JournalBroken(f"the journal cannot be written: {error}") from error
        if not (self._spares.has_next and self._spares.has_reserve):
            self._spares.make()

    def look(self) -> Sighting:
        """Called every few seconds: checks that a restart would find all files, and recreates missing ones if possible.

        Raises JournalLocked if another process took the directory meanwhile.
        """
        notes: list[str] = []
        snapshot_due = False
        if self._active is None or self._broken:
            return Sighting()
        try:
            if self._lock.renew():
                notes.append("the lock file was deleted or replaced; it was recreated")
            if not self._active.is_in_place():
                self._active.relink()
            if self._active.relinked > self._relinks_told:
                self._relinks_told = self._active.relinked
                notes.append(
                    f"{self._active.path} was deleted or replaced; it was recreated with all its groups"
                )
                snapshot_due = True
        except OSError as error:
            self._stuck = f"{self._directory}: journal files are missing and cannot be recreated: {error}"
            self._stuck_for_room = error.errno in NO_ROOM
            return Sighting(notes=tuple(notes), trouble=self._stuck)
        if self._spares.look():
            notes.append("prepared segments were deleted or replaced; they are being recreated")
            self._spares.make_in_thread(lambda: None)
        uncovered = self._uncovered()
        notes += uncovered
        return Sighting(notes=tuple(notes), snapshot_due=snapshot_due or bool(uncovered))

    def begin_segment(self) -> None:
        """A snapshot covers all groups: from here on a restart needs only the new file."""
        if self._active is None or self._broken or self._stuck or not self._active.offset:
            return
        try:
            self._turn_over(first_index=self._index + 1, need_bytes=_LEAST_BYTES)
        except NotWritten as error:
            self._stuck, self._stuck_for_room = str(error), not error.gone
        except OSError as error:
            self._broken = True
            raise JournalBroken(f"no new segment could be started: {error}") from error

    def committed_state(self) -> ClusterState:
        """The state as of the last durable group, read from the files and from the open descriptor of the active
        one.
        """
        if self._active is None:
            raise ValueError("recover comes first")
        snapshot, _ = load_newest(self._directory)
        first_index = int(self._active.path.name.removeprefix("segment-").removesuffix(".journal"))
        scanned = scan(self._active.content(), file=str(self._active.path), first_index=first_index)
        wanted = chain(
            self._directory, snapshot.index, active=Segment(path=self._active.path, first_index=first_index)
        )
        state = Recovery(
            snapshot_state=snapshot.state,
            snapshot_index=snapshot.index,
            groups=StoredGroups(wanted, scanned_last=scanned),
            index=self._index,
            epoch=self._epoch,
        ).replayed()
        if first_index - 1 + len(scanned.records) != self._index:
            raise CorruptJournal(str(self._active.path), 0, f"does not end with group {self._index}")
        return state

    def close(self) -> None:
        self._spares.close()
        if self._active is not None:
            self._active.close()
            self._active = None
        self._lock.close()

    def _begin(self, snapshot: Snapshot, notes: tuple[str, ...]) -> Recovery:
        """A new journal: the first segment must exist before anything is acknowledged."""
        self._spares.make()
        if not self._spares.has_next:
            raise JournalError(f"no room for a journal in {self._folder}: {self._spares.lacks}")
        path, descriptor = self._spares.take(first_index=1, need_bytes=_LEAST_BYTES)
        self._active = ActiveSegment(path, descriptor)
        self._spares.make_in_thread(lambda: None)
        return Recovery(
            snapshot_state=snapshot.state, snapshot_index=0, groups=(), index=0, epoch=0, notes=notes
        )

    def _refuse_missing_journal(self, snapshot: Snapshot, least_index: int) -> None:
        archived = archived_segments(self._directory)
        known = max([snapshot.index, least_index, *(segment.last_index or 0 for segment in archived)])
        if known:
            why = f"{self._folder} holds no segment, but groups up to {known} were written"
            raise LostTail(str(self._folder), 0, why, index=0, known=known)

    def _continue(self, path: Path, offset: int) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._active = ActiveSegment(path, descriptor, offset=offset)
        self._spares.make_in_thread(lambda: None)

    def _sync_what_was_read(self) -> None:
        """Makes the last group durable: a killed process may have written it without a sync, or the sync failed."""
        try:
            sync_folder(self._folder)
            self._clear_the_way()
        except NotWritten as error:
            self._stuck, self._stuck_for_room = str(error), True
        except OSError as error:
            raise JournalBroken(f"the journal that was read could not be made durable: {error}") from error

    def _clear_the_way(self, *, room_bytes: int = 0) -> None:
        """Removes the remains of an earlier failure before the next record. Raises NotWritten if that fails."""
        active = self._active
        if active is None or not (self._stuck or self._unsynced_from >= 0 or active.unclean_bytes):
            return
        try:
            if not active.is_in_place():
                active.relink()
            if self._unsynced_from >= 0:
                active.rewrite(self._unsynced_from)
                self._unsynced_from = -1
            active.clean(room_bytes=room_bytes)
        except OSError as error:
            if error.errno in NO_ROOM:
                raise NotWritten(f"no room on the disk: {error}") from error
            if not active.is_in_place():
                raise NotWritten(f"{active.path} cannot be recreated: {error}", gone=True) from error
            raise
        self._stuck = ""

    def _turn_over(self, *, first_index: int, need_bytes: int) -> None:
        full = self._active
        if full is None:
            raise ValueError("recover comes first")
        path, descriptor = self._spares.take(first_index=first_index, need_bytes=need_bytes)
        self._active = ActiveSegment(path, descriptor)
        self._active.relinked = full.relinked
        self._sealed.append(Segment(path=full.path, first_index=0, last_index=first_index - 1))
        used_bytes, old = full.offset, full.release()
        self._spares.make_in_thread(lambda: _seal(old, used_bytes))

    def _uncovered(self) -> list[str]:
        """Finds missing snapshots, and sealed segments that disappeared before a snapshot or the archive had their
        groups.
        """
        newest = self._directory / SNAPSHOT_NAME
        covered = snapshot_index(newest)
        notes = []
        if covered:
            self._had_snapshot = True
        elif self._had_snapshot:
            self._had_snapshot = False
            notes.append(f"{newest} was deleted; a new snapshot is due")
        self._sealed = [one for one in self._sealed if (one.last_index or 0) > covered]
        missing = [one for one in self._sealed if not one.path.exists()]
        if missing:
            self._sealed = [one for one in self._sealed if one not in missing]
            names = ", ".join(one.path.name for one in missing)
            notes.append(f"{names} was deleted before a snapshot included its groups; a new snapshot is due")
        return notes

    def _cut_tail(self, segment: Segment, result: Scan) -> TornTail:
        index = self._index + 1
        torn = segment.path.read_bytes()[result.end : result.end + result.torn_bytes]
        kept = str(self._folder / f"torn-{index}-{time.time_ns() // 1_000_000}")
        try:
            self._keep_aside(Path(kept), torn)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise JournalBroken(f"the torn end of {segment.path} could not be kept: {error}") from error
            kept = "nowhere, for lack of room"
        if self._active is not None:
            self._active.unclean_bytes = len(torn)  # zeroed before anything else is written
        return TornTail(
            index=index, file=str(segment.path), offset=result.end, size_bytes=len(torn), kept_at=kept
        )

    def _keep_aside(self, kept: Path, torn: bytes) -> None:
        try:
            write_file(kept, torn)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            # The next segment is empty and can be recreated; a full disk must not keep a scheduler from starting.
            (self._folder / NEXT_NAME).unlink(missing_ok=True)
            self._spares.wait()
            self._spares.forget(NEXT_NAME)
            write_file(kept, torn)
        sync_folder(self._folder)


def _last_epoch(segments: list[Segment], last: Scan, snapshot: Snapshot) -> int:
    """An empty segment has no epoch: the one before it does, or the snapshot."""
    if last.records:
        return last.records[-1].epoch
    if len(segments) == 1 or snapshot.index >= segments[-1].first_index - 1:
        return snapshot.epoch
    before = segments[-2]
    records = scan_segment(before).records
    return records[-1].epoch if records else snapshot.epoch


def _with_ends(segments: list[Segment]) -> list[Segment]:
    """All segments except the last, each with the last index it should contain."""
    return [
        Segment(path=one.path, first_index=one.first_index, last_index=following.first_index - 1)
        for one, following in itertools.pairwise(segments)
    ]


def _seal(descriptor: int, used_bytes: int) -> None:
    """Frees the unused end. All records are durable already, so a failure does no harm."""
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, used_bytes)
        os.fsync(descriptor)
    os.close(descriptor)
