"""The journal of several schedulers: the engine has the committed groups, and each scheduler has a copy in local files.

A group is committed in the engine first and written to the local segments afterwards. So snapshots, history and archive
work as with the file journal.
"""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

import msgspec

from dgpu.core.apply.table import apply
from dgpu.core.state import ClusterState
from dgpu.journal.aside import SetAside, set_aside_after
from dgpu.journal.checkpoint import Checkpoint, last_index, local_chains, write_checkpoint
from dgpu.journal.engine import (
    BelowFloor,
    Engine,
    EngineError,
    EngineFull,
    EngineUnavailable,
    Head,
    HeadMoved,
    Term,
    boottime_ms,
    extended,
)
from dgpu.journal.errors import CorruptJournal, NotWritten
from dgpu.journal.file import FileJournal
from dgpu.journal.format import Record, encode_record, record_at
from dgpu.journal.journal import Group, Recovery, Room, Sighting
from dgpu.journal.segments import group_of
from dgpu.wire.records import SCHEMA

_CHECKPOINT_GROUPS = 1_000
_RETRY_S = 0.1


class _Copied(msgspec.Struct, frozen=True):
    """A committed group on its way to the local files."""

    record: Record
    encoded: bytes
    chain: bytes  # after it


class Diverged(EngineError):  # noqa: N818 - it names the state of the journal
    """The local copy and the engine's journal have no common group that can be found. An operator must act."""


class ReplicatedJournal:
    """`recover`, then `catch_up` until it returns nothing, then perhaps `lead`. One thread at a time, except for
    `step_down`, which ends a call that waits for the engine.
    """

    def __init__(self, directory: Path, local: FileJournal, engine: Engine) -> None:
        self._directory = directory
        self._local = local
        self._engine = engine
        self._term: Term | None = None
        self._head = Head()  # of the local copy; while we lead, of the engine
        self._written = Checkpoint()  # the end of the local files
        self._checkpoint_index = 0
        self._set_aside: SetAside | None = None
        self._unwritten: list[_Copied] = []  # committed, but the local disk had no room
        self._engine_full = ""
        self._stop = threading.Event()
        self._copied_bytes = 0
        self.waits_since_ms: int | None = None  # boot time since when the engine does not answer a commit

    @classmethod
    def open(cls, directory: Path | str, engine: Engine, **sizes: int) -> ReplicatedJournal:
        """Compares the local copy with the engine, and sets a local tail aside that the engine does not have.

        Raises BelowFloor if the engine has deleted the next group, Diverged if no common group is found.
        """
        directory = Path(directory)
        local = FileJournal.open(directory, **sizes)
        try:
            journal = cls(directory, local, engine)
            journal._settle()
        except BaseException:
            local.close()
            raise
        return journal

    @property
    def head(self) -> Head:
        return self._head

    @property
    def last_index(self) -> int:
        return self._head.index

    @property
    def copied_bytes(self) -> int:
        """Of all groups that were appended or copied since it was opened."""
        return self._copied_bytes

    @property
    def set_aside(self) -> SetAside | None:
        return self._set_aside

    @property
    def room(self) -> Room:
        return Room.NONE if self._engine_full or self._unwritten else self._local.room

    @property
    def trouble(self) -> str:
        return self._engine_full or self._local.trouble

    @property
    def room_lacks(self) -> str:
        return self._engine_full or self._local.room_lacks

    @property
    def sure_payload_bytes(self) -> int:
        return self._local.sure_payload_bytes

    def recover(self) -> Recovery:
        """The local copy. Groups that it lacks come from `catch_up`."""
        found = self._local.recover()
        if found.index != self._head.index:
            raise CorruptJournal(
                str(self._directory),
                0,
                f"group {self._head.index} was read before, but {found.index} is the last one",
            )
        self._head = Head(index=found.index, epoch=found.epoch, chain=self._head.chain)
        if self._set_aside is None:
            return found
        notes = (*found.notes, str(self._set_aside))
        return Recovery(
            snapshot_state=found.snapshot_state,
            snapshot_index=found.snapshot_index,
            groups=found.groups,
            index=found.index,
            epoch=found.epoch,
            cut=found.cut,
            notes=notes,
        )

    def catch_up(self) -> list[Group]:
        """Copies the next committed groups to the local files and returns them; empty: the copy has all of them.

        Raises Diverged before anything is written, BelowFloor, NotWritten (the local disk is full, and no group was
        copied).
        """
        self._write_unwritten()
        head = self._engine.head()
        if head.index < self._head.index or (
            head.index == self._head.index and head.chain != self._head.chain
        ):
            raise Diverged(_why_diverged(self._head, head))
        if head.index == self._head.index:
            self._head = head
            return []
        encoded = self._engine.records(self._head.index + 1, head.index)
        return self._copy(self._checked(encoded, head))

    def lead(self, term: Term) -> None:
        """From now on, `append` commits under this term. Raises HeadMoved unless the copy is complete."""
        head = self._engine.head()
        if (head.index, head.chain) != (self._head.index, self._head.chain):
            raise HeadMoved(
                f"the copy ends with group {self._head.index}, the journal with group {head.index}", head
            )
        self._head, self._term = head, term
        self._stop.clear()

    def step_down(self) -> None:
        """Ends a call that waits for the engine. The group in flight may still be committed: discard the memory."""
        self._stop.set()
        self._term = None

    def append(self, epoch: int, index: int, payload: bytes) -> None:
        """Committed by the engine's majority when it returns.

        Raises FenceLost: another scheduler leads. Raises EngineUnavailable only after `step_down`, EngineRefused if an
        operator must act: the outcome is unknown.
        """
        term = self._term
        if term is None:
            if self._stop.is_set():  # the thread that appends may come to it only now
                raise EngineUnavailable("this scheduler has stepped down")
            raise ValueError("only the leader appends")
        if index != self._head.index + 1 or epoch < self._head.epoch:
            raise ValueError(
                f"group {index} of epoch {epoch} cannot follow {self._head.index} of {self._head.epoch}"
            )
        self._write_unwritten()
        if self._local.room is Room.NONE:
            raise NotWritten(self._local.room_lacks, gone=bool(self._local.trouble))
        record = encode_record(schema=SCHEMA, epoch=epoch, index=index, payload=payload)
        try:
            self._head = self._commit(term, epoch, index, record)
        except EngineFull as error:
            self._engine_full = str(error)
            raise NotWritten(str(error)) from error
        self._engine_full = ""
        self._copied_bytes += len(record)
        copied = _Copied(Record(SCHEMA, epoch, index, payload, 0), record, self._head.chain)
        self._unwritten.append(copied)
        with contextlib.suppress(NotWritten):  # `room` is NONE until there is room for it
            self._write_unwritten()

    def prepare(self) -> None:
        self._local.prepare()
        with contextlib.suppress(NotWritten):
            self._write_unwritten()
        if self._engine_full:
            health = self._engine.health()
            if health.has_quorum and not health.is_full:
                self._engine_full = ""

    def look(self) -> Sighting:
        return self._local.look()

    def begin_segment(self) -> None:
        self._local.begin_segment()

    def committed_state(self) -> ClusterState:
        state = self._local.committed_state()
        for copied in self._unwritten:
            for event in group_of(copied.record, "memory").events:
                apply(state, event)
        return state

    def close(self) -> None:
        self.step_down()
        with contextlib.suppress(OSError):
            write_checkpoint(self._directory, self._written)
        self._local.close()

    def _settle(self) -> None:
        """Finds the last group that the local copy and the engine have in common."""
        head, floor = self._engine.head(), self._engine.floor()
        last = last_index(self._directory)
        if last + 1 < floor:
            raise BelowFloor(last + 1, floor)
        common, chain = self._common(head, floor, last)
        if common < last:
            write_checkpoint(self._directory, Checkpoint(index=common, chain=chain))
            self._set_aside = set_aside_after(self._directory, common, last)
        self._head = Head(index=common, chain=chain)
        self._written = Checkpoint(index=common, chain=chain)
        self._checkpoint_index = common

    def _common(self, head: Head, floor: int, last: int) -> tuple[int, bytes]:
        for from_start in (False, True):
            try:
                chains = local_chains(self._directory, from_start=from_start)
            except CorruptJournal:
                continue  # the oldest groups are in no file any more
            low = max(min(chains), floor - 1)
            high = min(last, head.index)
            if low > high or not self._agrees(chains, low):
                continue
            while low < high:  # if they agree at one index, they agree at all earlier ones
                middle = (low + high + 1) // 2
                low, high = (middle, high) if self._agrees(chains, middle) else (low, middle - 1)
            return low, chains[low]
        raise Diverged(
            f"{self._directory} holds groups up to {last} that are not in the engine's journal, which ends with group "
            f"{head.index}: move the directory away and join again with an empty one"
        )

    def _agrees(self, chains: dict[int, bytes], index: int) -> bool:
        return chains.get(index) == self._engine.chain_at(index)

    def _checked(self, encoded: list[bytes], head: Head) -> list[_Copied]:
        copied: list[_Copied] = []
        chain = self._head.chain
        for index, one in enumerate(encoded, self._head.index + 1):
            record = record_at(memoryview(one), 0)
            if record is None or record.index != index:
                raise CorruptJournal("engine", 0, f"group {index} is damaged")
            chain = extended(chain, one)
            copied.append(_Copied(record, one, chain))
        if copied:
            last = copied[-1].record.index
            known = head.chain if last == head.index else self._engine.chain_at(last)
            if chain != known:
                raise Diverged(_why_diverged(self._head, head))
        return copied

    def _copy(self, copied: list[_Copied]) -> list[Group]:
        groups = [
            group_of(one.record, "engine") for one in copied
        ]  # a newer schema is refused before it is stored
        for number, one in enumerate(copied):
            try:
                self._write(one)
            except NotWritten:
                if number:
                    return groups[:number]  # the caller applies these; the next call tells the trouble
                raise
            self._copied_bytes += len(one.encoded)
            self._head = Head(index=one.record.index, epoch=one.record.epoch, chain=one.chain)
        return groups

    def _commit(self, term: Term, epoch: int, index: int, record: bytes) -> Head:
        """The same call again until the engine tells the outcome."""
        try:
            while True:
                try:
                    return self._engine.commit(term, self._head, index, epoch, record)
                except EngineUnavailable:
                    self.waits_since_ms = self.waits_since_ms or boottime_ms()
                    if self._stop.wait(_RETRY_S):
                        raise
        finally:
            self.waits_since_ms = None

    def _write_unwritten(self) -> None:
        while self._unwritten:
            self._write(self._unwritten[0])
            del self._unwritten[0]

    def _write(self, copied: _Copied) -> None:
        index = copied.record.index
        self._local.append_record(copied.record.epoch, index, copied.encoded)
        self._written = Checkpoint(index=index, chain=copied.chain)
        if index >= self._checkpoint_index + _CHECKPOINT_GROUPS:
            with contextlib.suppress(OSError):  # an older checkpoint only costs time at the next start
                write_checkpoint(self._directory, self._written)
                self._checkpoint_index = index


def _why_diverged(ours: Head, theirs: Head) -> str:
    return (
        f"the local copy ends with group {ours.index} ({ours.chain.hex()[:12] or 'empty'}), the engine's journal with "
        f"group {theirs.index} ({theirs.chain.hex()[:12] or 'empty'}): restart this scheduler, so that it sets its own "
        f"tail aside"
    )
