"""The interface of all journals: the file journal, the one in memory, and later ones."""

from __future__ import annotations

import enum
import gc
from collections.abc import Iterable
from typing import Protocol

import msgspec

from dgpu.core.apply.table import apply
from dgpu.core.events import Event
from dgpu.core.state import ClusterState


class Room(enum.Enum):
    OK = "ok"
    RESERVE = "reserve"  # only necessary commands are accepted: reports, cancels, nodes. No submits
    NONE = "none"  # nothing is accepted until there is room


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Events that were decided together and made durable together."""

    index: int  # of the record, from 1
    epoch: int
    events: list[Event]


class TornTail(msgspec.Struct, frozen=True, kw_only=True):
    """The final group was being written when the machine stopped. It was never acknowledged."""

    index: int
    file: str
    offset: int
    size_bytes: int
    kept_at: str  # the file with the bytes


class Sighting(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a check of the journal's files."""

    notes: tuple[str, ...] = ()  # missing files and the action taken
    snapshot_due: bool = False  # a snapshot must cover groups whose file is missing
    trouble: str = ""


class Recovery(msgspec.Struct, frozen=True, kw_only=True):
    snapshot_state: ClusterState
    snapshot_index: int  # 0: no snapshot, everything is replayed
    groups: Iterable[Group]  # after the snapshot; read while iterated, which may raise CorruptJournal
    index: int  # of the last durable group
    epoch: int  # of that group, 0 for an empty journal
    cut: TornTail | None = None
    notes: tuple[str, ...] = ()  # for operators: a damaged snapshot, an older one used

    def replayed(self) -> ClusterState:
        """The state as of the last durable group. Call it once: it changes `snapshot_state`."""
        state = self.snapshot_state
        with collector_off():
            for group in self.groups:
                for event in group.events:
                    apply(state, event)
        return state


class Journal(Protocol):
    """Calls block; a service calls them in a thread, one at a time (properties may be read at any time)."""

    @property
    def room(self) -> Room: ...

    @property
    def trouble(self) -> str:
        """Why `room` is not OK although the disk may have room; empty: the disk is full, or there is no problem."""
        ...

    @property
    def room_lacks(self) -> str:
        """The file that could not be prepared, also while `room` is still OK; empty: none."""
        ...

    @property
    def sure_payload_bytes(self) -> int:
        """A payload of this size can be appended now without asking the disk for more."""
        ...

    def recover(self) -> Recovery:
        """The first call, made once."""
        ...

    def append(self, epoch: int, index: int, payload: bytes) -> None:
        """Durable when it returns.

        Raises NotWritten: the group is stored nowhere and `room` is NONE. Raises JournalBroken: the process must end.
        """
        ...

    def prepare(self) -> None:
        """Tries again to get room."""
        ...

    def look(self) -> Sighting:
        """Checks that a restart would find every file, and recreates missing ones."""
        ...

    def begin_segment(self) -> None:
        """The next group goes to a new segment, if one can be created: earlier ones may be damaged or missing."""
        ...

    def committed_state(self) -> ClusterState:
        """The state as of the last appended group, read again from the files."""
        ...

    def close(self) -> None: ...


class collector_off:  # noqa: N801 - reads as a statement
    """Disables garbage collection: it would scan millions of new acyclic values repeatedly."""

    def __enter__(self) -> None:
        self._was_on = gc.isenabled()
        gc.disable()

    def __exit__(self, *_: object) -> None:
        if self._was_on:
            gc.enable()
