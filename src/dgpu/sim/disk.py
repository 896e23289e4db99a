"""The scheduler's disk: synced data survive; an unfinished write survives completely, in part or not at all."""

from __future__ import annotations

from collections.abc import Callable

from dgpu.core.digest import digest
from dgpu.core.events import Event
from dgpu.core.replay import replay
from dgpu.core.state import ClusterState
from dgpu.journal.format import encode_record, record_bytes, scan
from dgpu.journal.journal import Room
from dgpu.journal.memory import MemoryDisk, MemoryJournal
from dgpu.service.machine.outputs import Append, CommittedGroup
from dgpu.sim.world import World
from dgpu.wire.records import SCHEMA


class SimDisk:
    def __init__(self, world: World) -> None:
        self._world = world
        self.memory = MemoryDisk()
        self._journal = MemoryJournal(self.memory)
        self._writing: Append | None = None
        self._life = 0
        self.torn = 0
        self.full_until = 0
        self.refused = 0
        self._noticed = False
        self._sync_fails = False

    @property
    def room(self) -> Room:
        """The journal's view: a full disk is noticed when a write fails."""
        return Room.NONE if self._noticed and self._is_full else Room.OK

    @property
    def _is_full(self) -> bool:
        return self._world.now < self.full_until

    def fail_next_sync(self) -> None:
        self._sync_fails = True

    def cut_power(self) -> None:
        self.memory.cut_power()

    def recover(self) -> tuple[ClusterState, int]:
        """The state at a start: from the snapshot, checked against the whole journal."""
        self._journal = MemoryJournal(self.memory)
        recovery = self._journal.recover()
        self.torn += recovery.cut is not None
        state = recovery.replayed()
        whole = self.replayed()
        if digest(state) != digest(whole):
            raise AssertionError("snapshot and tail give another state than the whole journal")
        return state, recovery.index

    def replayed(self) -> ClusterState:
        events: list[Event] = [event for group in self._journal.groups() for event in group.events]
        return replay(events)

    def groups_after(self, index: int) -> list[CommittedGroup]:
        return [
            CommittedGroup(index=group.index, events=tuple(group.events))
            for group in self._journal.groups()
            if group.index > index
        ]

    def append(
        self,
        group: Append,
        on_durable: Callable[[], None],
        on_not_stored: Callable[[ClusterState], None],
        on_failed: Callable[[], None],
    ) -> None:
        self._writing = group
        life = self._life

        def synced() -> None:
            if life != self._life:
                return
            self._writing = None
            if self._is_full:
                self._refuse(group)
                on_not_stored(self.replayed())
            elif self._sync_fails:
                self._fail(group)
                on_failed()
            else:
                self._noticed = False
                self._journal.append(group.epoch, group.index, group.payload)
                on_durable()

        self._world.after(self._world.between(0, 6), synced)

    def _refuse(self, group: Append) -> None:
        """A full copy-on-write disk: none of the record was stored, or only its beginning."""
        record = _record(group)
        self.refused += 1
        self._noticed = True
        self.memory.left = record[: self._world.between(0, len(record) - 16)]

    def _fail(self, group: Append) -> None:
        """The sync fails. The record is only in the cache, where the next start reads it."""
        self._sync_fails = False
        start = len(self.memory.segment)
        self.memory.left = b""  # the record is written over it
        self.memory.segment += _record(group)
        self.memory.unsynced = (start, len(self.memory.segment))

    def take_snapshot(self) -> None:
        """The follower's part: it reads only the committed journal."""
        if self.memory.unsynced is not None:
            return  # the last group counts only when a start has made it durable
        state = self.replayed()
        index = sum(1 for _ in self._journal.groups())
        self._journal.take_snapshot(state, index=index)

    def lose_tail(self, groups: int) -> None:
        """The newest groups and their snapshots are lost."""
        records = scan(bytes(self.memory.segment), file="memory", first_index=1).records
        kept = records[: max(1, len(records) - groups)]
        del self.memory.segment[kept[-1].offset + record_bytes(len(kept[-1].payload)) :]
        self.memory.snapshot = self.memory.left = b""
        self.memory.unsynced = None

    def crash(self) -> None:
        self._life += 1
        group, self._writing = self._writing, None
        if group is None:
            return
        record = _record(group)
        self.memory.left = b""
        kind = self._world.between(0, 4)
        if kind == 0:
            return  # no byte reached the disk
        if kind == 1:
            self.memory.segment += record  # the whole record did, but it was not acknowledged
        elif kind == 2:
            self.memory.segment += record[: self._world.between(1, len(record) - 1)]
        elif kind == 3:
            flipped = bytearray(record)
            flipped[self._world.between(0, len(record) - 1)] ^= 1 << self._world.between(0, 7)
            self.memory.segment += flipped
        else:
            hole = self._world.between(0, len(record) - 1)
            self.memory.segment += record[:hole] + bytes(len(record) - hole)


def _record(group: Append) -> bytes:
    return encode_record(schema=SCHEMA, epoch=group.epoch, index=group.index, payload=group.payload)
