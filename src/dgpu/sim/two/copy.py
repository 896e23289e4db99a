"""The local copy of the journal on one scheduler's disk: a fetched snapshot, perhaps, and the groups after it.

Groups are written after their commit. If the disk is full, they wait in memory, and the journal takes nothing more.
"""

from __future__ import annotations

from collections.abc import Callable

from dgpu.core.apply.table import apply
from dgpu.core.state import ClusterState
from dgpu.journal.engine import extended
from dgpu.journal.format import encode_record, record_at, scan
from dgpu.journal.journal import Group, Room
from dgpu.journal.segments import group_of
from dgpu.journal.snapshot import decode_snapshot
from dgpu.sim.world import World
from dgpu.wire.records import SCHEMA

_RETRY_MS = 500


class LocalCopy:
    def __init__(self, world: World) -> None:
        self._world = world
        self._snapshot = b""  # of the engine; empty: the copy has all groups
        self.first_index = 1
        self._segment = bytearray()
        self._unwritten: list[bytes] = []  # committed, but the disk had no room
        self._groups: list[Group] = []
        self.chains: dict[int, bytes] = {0: b""}
        self.last_index = 0
        self._writing: bytes | None = None
        self._life = 0
        self.torn = 0
        self.fetched = 0
        self.refused = 0
        self.full_until = 0
        self.fails_next_sync = False
        self.on_broken: Callable[[], None] = lambda: None

    @property
    def chain(self) -> bytes:
        return self.chains[self.last_index]

    @property
    def room(self) -> Room:
        return Room.NONE if self._unwritten else Room.OK

    @property
    def is_full(self) -> bool:
        return self._world.now < self.full_until

    def open(self) -> None:
        """Reads the files at the start of a process."""
        self._unwritten = []
        result = scan(bytes(self._segment), file="memory", first_index=self.first_index)
        self.torn += bool(result.torn_bytes)
        del self._segment[result.end :]
        before = self.first_index - 1
        self.last_index, self._groups, self.chains = before, [], {before: self.chains[before]}
        for record in result.records:
            encoded = encode_record(
                schema=SCHEMA, epoch=record.epoch, index=record.index, payload=record.payload
            )
            self._note(encoded)

    def begin_at(self, index: int, chain: bytes, snapshot: bytes) -> None:
        """The engine's snapshot takes the place of all groups."""
        self._snapshot, self.first_index = snapshot, index + 1
        self.chains = {index: chain}
        self._segment.clear()
        self.fetched += 1
        self.open()

    def state_at(self, index: int) -> ClusterState:
        state = decode_snapshot(self._snapshot, "memory").state if self._snapshot else ClusterState()
        for group in self._groups:
            if group.index <= index:
                for event in group.events:
                    apply(state, event)
        return state

    def groups(self) -> list[Group]:
        return list(self._groups)

    def write(self, encoded: bytes) -> bool:
        """False: the disk is full."""
        if self.is_full:
            self.refused += 1
            return False
        self._segment += encoded
        self._note(encoded)
        return True

    def write_later(self, encoded: bytes, done: Callable[[], None]) -> None:
        """Synced some time later, unless the process dies before that."""
        self._writing = encoded
        life = self._life

        def synced() -> None:
            if life != self._life:
                return
            self._writing = None
            if self.fails_next_sync:
                self.fails_next_sync = False
                self._segment += encoded[: self._world.chance.choice((0, len(encoded) // 2, len(encoded)))]
                self.on_broken()
                return
            if self.is_full or self._unwritten:
                self.refused += 1
                self._unwritten.append(encoded)
                self._note(encoded)  # the engine has it
                self._world.after(_RETRY_MS, lambda: self._write_unwritten(life))
            else:
                self.write(encoded)
            done()

        self._world.after(self._world.between(0, 6), synced)

    def crash(self) -> None:
        """A record on its way survives wholly, in part, or not at all."""
        self._life += 1
        encoded, self._writing = self._writing, None
        waited, self._unwritten = self._unwritten, []
        if encoded is not None and not waited:
            self._segment += encoded[: self._world.chance.choice((0, len(encoded) // 2, len(encoded)))]

    def _write_unwritten(self, life: int) -> None:
        if life != self._life or not self._unwritten:
            return
        if self.is_full:
            self._world.after(_RETRY_MS, lambda: self._write_unwritten(life))
            return
        for encoded in self._unwritten:
            self._segment += encoded
        self._unwritten = []

    def _note(self, encoded: bytes) -> None:
        record = record_at(memoryview(encoded), 0)
        if record is None or record.index != self.last_index + 1:
            raise AssertionError("a damaged record, or one that does not follow")
        self._groups.append(group_of(record, "memory"))
        self.chains[record.index] = extended(self.chain, encoded)
        self.last_index = record.index
