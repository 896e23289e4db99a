"""A journal without a disk, for tests and the simulation: the same bytes, the same scanning, the same refusals."""

from __future__ import annotations

from collections.abc import Iterator

from dgpu.core.replay import replay
from dgpu.core.state import ClusterState
from dgpu.journal.errors import JournalBroken, NotWritten
from dgpu.journal.format import encode_record, scan
from dgpu.journal.journal import Group, Recovery, Room, Sighting, TornTail
from dgpu.journal.segments import group_of
from dgpu.journal.snapshot import decode_snapshot, encode_snapshot
from dgpu.wire.records import SCHEMA

_FILE = "memory"


class MemoryDisk:
    """The data that survive a crash. A simulation may cut, tear or flip bytes between two journals."""

    def __init__(self) -> None:
        self.segment = bytearray()
        self.snapshot = b""
        self.torn: list[bytes] = []
        self.unsynced: tuple[int, int] | None = None  # only in the cache: a failed sync left its pages clean
        self.left: bytes = b""  # after the last record: the beginning of a record without room

    def cut_power(self) -> None:
        """Drops data that are only in the cache."""
        if self.unsynced is not None:
            start, end = self.unsynced
            self.segment[start:end] = bytes(end - start)
            self.unsynced = None


class MemoryJournal:
    def __init__(self, disk: MemoryDisk | None = None) -> None:
        self.disk = disk or MemoryDisk()
        self.room = Room.OK  # set it to simulate a full disk
        self.sure_payload_bytes = 1 << 30
        self.trouble = self.room_lacks = ""
        self.broken = False  # set it to simulate a failing disk
        self.refusals = 0  # this many appends find no room; `room` is NONE from then on
        self._index = 0
        self._epoch = 0

    def recover(self) -> Recovery:
        self.disk.segment += self.disk.left
        self.disk.left = b""
        state, snapshot_index = ClusterState(), 0
        if self.disk.snapshot:
            snapshot = decode_snapshot(self.disk.snapshot, _FILE)
            state, snapshot_index = snapshot.state, snapshot.index
        result = scan(bytes(self.disk.segment), file=_FILE, first_index=1)
        torn = bytes(self.disk.segment[result.end : result.end + result.torn_bytes])
        del self.disk.segment[result.end :]
        self._rewrite_last()
        self._index = len(result.records)
        self._epoch = result.records[-1].epoch if result.records else 0
        cut = None
        if torn:
            self.disk.torn.append(torn)
            cut = TornTail(
                index=self._index + 1, file=_FILE, offset=result.end, size_bytes=len(torn), kept_at=_FILE
            )
        return Recovery(
            snapshot_state=state,
            snapshot_index=snapshot_index,
            groups=[group_of(record, _FILE) for record in result.records[snapshot_index:]],
            index=self._index,
            epoch=self._epoch,
            cut=cut,
        )

    def _rewrite_last(self) -> None:
        """As in the file journal: the last record is written again and synced, so it is certainly on the disk."""
        self.disk.unsynced = None

    def append(self, epoch: int, index: int, payload: bytes) -> None:
        if index != self._index + 1 or epoch < self._epoch:
            raise ValueError(f"group {index} of epoch {epoch} cannot follow {self._index} of {self._epoch}")
        if self.broken:
            raise JournalBroken("the disk failed")
        if self.refusals:
            self.refusals -= 1
            self.room = Room.NONE
            raise NotWritten("the disk is full")
        self.disk.left = b""
        self.disk.segment += encode_record(schema=SCHEMA, epoch=epoch, index=index, payload=payload)
        self._index, self._epoch = index, epoch

    def prepare(self) -> None:
        """Memory has room; a test that sets `room` also resets it."""

    def look(self) -> Sighting:
        return Sighting()

    def begin_segment(self) -> None:
        """There is only one segment."""

    def committed_state(self) -> ClusterState:
        return replay(event for group in self.groups() for event in group.events)

    def close(self) -> None:
        self.broken = True

    def take_snapshot(self, state: ClusterState, *, index: int) -> None:
        """Done by the follower for a real journal."""
        self.disk.snapshot = encode_snapshot(state, index=index, epoch=state.epoch)

    def groups(self) -> Iterator[Group]:
        result = scan(bytes(self.disk.segment), file=_FILE, first_index=1)
        return (group_of(record, _FILE) for record in result.records)
