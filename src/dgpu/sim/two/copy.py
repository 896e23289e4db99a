"""The local copy of the journal on one scheduler's disk. Groups are written after their commit."""

from __future__ import annotations

from collections.abc import Callable

from dgpu.core.events import Event
from dgpu.core.replay import replay
from dgpu.core.state import ClusterState
from dgpu.journal.engine import extended
from dgpu.journal.format import encode_record, record_at, record_bytes, scan
from dgpu.journal.journal import Group
from dgpu.journal.memory import MemoryDisk, MemoryJournal
from dgpu.sim.world import World
from dgpu.wire.records import SCHEMA


class LocalCopy:
    def __init__(self, world: World) -> None:
        self._world = world
        self.memory = MemoryDisk()
        self._journal = MemoryJournal(self.memory)
        self._writing: bytes | None = None
        self._life = 0
        self.torn = 0
        self.chains: list[bytes] = [b""]  # by index

    @property
    def last_index(self) -> int:
        return len(self.chains) - 1

    @property
    def chain(self) -> bytes:
        return self.chains[-1]

    def open(self) -> None:
        """Reads the files at the start of a process."""
        self._journal = MemoryJournal(self.memory)
        self.torn += self._journal.recover().cut is not None
        self.chains = [b""]
        for record in scan(bytes(self.memory.segment), file="memory", first_index=1).records:
            encoded = encode_record(
                schema=SCHEMA, epoch=record.epoch, index=record.index, payload=record.payload
            )
            self.chains.append(extended(self.chain, encoded))

    def cut_after(self, index: int) -> None:
        """Sets the groups after this one aside: the engine does not have them."""
        records = scan(bytes(self.memory.segment), file="memory", first_index=1).records[:index]
        del self.memory.segment[sum(record_bytes(len(record.payload)) for record in records) :]
        self.open()

    def state_at(self, index: int) -> ClusterState:
        events: list[Event] = [
            event for group in self.groups() if group.index <= index for event in group.events
        ]
        return replay(events)

    def groups(self) -> list[Group]:
        return list(self._journal.groups())

    def write(self, encoded: bytes) -> None:
        record = record_at(memoryview(encoded), 0)
        if record is None:
            raise AssertionError("a damaged record")
        self._journal.append(record.epoch, record.index, record.payload)
        self.chains.append(extended(self.chain, encoded))

    def write_later(self, encoded: bytes, done: Callable[[], None]) -> None:
        """Synced some time later, unless the process dies before that."""
        self._writing = encoded
        life = self._life

        def synced() -> None:
            if life == self._life:
                self._writing = None
                self.write(encoded)
                done()

        self._world.after(self._world.between(0, 6), synced)

    def crash(self) -> None:
        """A record on its way survives wholly, in part, or not at all."""
        self._life += 1
        encoded, self._writing = self._writing, None
        if encoded is not None:
            self.memory.segment += encoded[: self._world.chance.choice((0, len(encoded) // 2, len(encoded)))]
