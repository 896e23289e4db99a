"""The scheduler's disk: what was synced survives; what was being written may be there, in part or not at all."""

from __future__ import annotations

from collections.abc import Callable

from dgpu.core.digest import digest
from dgpu.core.events import Event
from dgpu.core.replay import replay
from dgpu.core.state import ClusterState
from dgpu.journal.format import encode_record, record_bytes, scan
from dgpu.journal.memory import MemoryDisk, MemoryJournal
from dgpu.service.outputs import Append, CommittedGroup
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

    def recover(self) -> tuple[ClusterState, int]:
        """The state as a starting scheduler finds it: from the snapshot, checked against all of the journal."""
        self._journal = MemoryJournal(self.memory)
        recovery = self._journal.recover()
        self.torn += recovery.cut is not None
        state = recovery.replayed()
        whole = self.replayed()
        if digest(state) != digest(whole):
            raise AssertionError("snapshot and tail do not make the state that the whole journal makes")
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

    def append(self, group: Append, on_durable: Callable[[], None]) -> None:
        self._writing = group
        life = self._life

        def synced() -> None:
            if life == self._life:
                self._writing = None
                self._journal.append(group.epoch, group.index, group.payload)
                on_durable()

        self._world.after(self._world.between(0, 6), synced)

    def take_snapshot(self) -> None:
        """What the follower does: it sees the committed journal and nothing else."""
        state = self.replayed()
        index = sum(1 for _ in self._journal.groups())
        self._journal.take_snapshot(state, index=index)

    def lose_tail(self, groups: int) -> None:
        """The newest groups are gone without a trace, and snapshots with them."""
        records = scan(bytes(self.memory.segment), file="memory", first_index=1).records
        kept = records[: max(1, len(records) - groups)]
        del self.memory.segment[kept[-1].offset + record_bytes(len(kept[-1].payload)) :]
        self.memory.snapshot = b""

    def crash(self) -> None:
        self._life += 1
        group, self._writing = self._writing, None
        if group is None:
            return
        record = encode_record(schema=SCHEMA, epoch=group.epoch, index=group.index, payload=group.payload)
        kind = self._world.between(0, 3)
        if kind == 0:
            return  # nothing of it reached the disk
        if kind == 1:
            self.memory.segment += record  # all of it did, but nobody was told
        elif kind == 2:
            self.memory.segment += record[: self._world.between(1, len(record) - 1)]
        else:
            hole = self._world.between(0, len(record) - 1)
            self.memory.segment += record[:hole] + bytes(len(record) - hole)
