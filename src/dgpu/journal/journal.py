"""What every journal offers: the file journal, the one in memory, and those to come."""

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
    RESERVE = "reserve"  # only what must be known is still taken: reports, cancels, nodes. No submits
    NONE = "none"  # nothing is taken until there is room


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
    kept_at: str  # the bytes are here


class Sighting(msgspec.Struct, frozen=True, kw_only=True):
    """What a look at the journal's files found."""

    notes: tuple[str, ...] = ()  # what was missing, and what was done about it
    snapshot_due: bool = False  # a snapshot has to cover groups whose file is gone
    trouble: str = ""


class Recovery(msgspec.Struct, frozen=True, kw_only=True):
    snapshot_state: ClusterState
    snapshot_index: int  # 0: no snapshot, everything is replayed
    groups: Iterable[Group]  # after the snapshot; read while iterated, which may raise CorruptJournal
    index: int  # of the last durable group
    epoch: int  # of that group, 0 for an empty journal
    cut: TornTail | None = None
    notes: tuple[str, ...] = ()  # what an operator should know: a damaged snapshot, an older one used

    def replayed(self) -> ClusterState:
        """The state as of the last durable group. Call it once: it grows out of `snapshot_state`."""
        state = self.snapshot_state
        with collector_off():
            for group in self.groups:
                for event in group.events:
                    apply(state, event)
        return state


class Journal(Protocol):
    """Calls block; a service makes them in a thread, one at a time (properties may be read at any time)."""

    @property
    def room(self) -> Room: ...

    @property
    def trouble(self) -> str:
        """Why `room` is not OK when the disk may have room; empty: the disk is full, or nothing is wrong."""
        ...

    @property
    def room_lacks(self) -> str:
        """What could not be made ahead of need, also while `room` is still OK; empty: nothing."""
        ...

    @property
    def sure_payload_bytes(self) -> int:
        """A payload of this size can be appended now without asking the disk for more."""
        ...

    def recover(self) -> Recovery:
        """Before anything else, once."""
        ...

    def append(self, epoch: int, index: int, payload: bytes) -> None:
        """Durable when it returns.

        Raises NotWritten: the group is stored nowhere and `room` is NONE. Raises JournalBroken: the process must end.
        """
        ...

    def prepare(self) -> None:
        """Try again to get room."""
        ...

    def look(self) -> Sighting:
        """Check that a restart would find every file, and make again what it would not."""
        ...

    def begin_segment(self) -> None:
        """The next group goes to a new segment, if one can be had: earlier ones may be damaged or gone."""
        ...

    def committed_state(self) -> ClusterState:
        """The state as of the last group that was appended, read anew."""
        ...

    def close(self) -> None: ...


class collector_off:  # noqa: N801 - reads as a statement
    """No garbage collection inside: millions of new acyclic values would be walked again and again."""

    def __enter__(self) -> None:
        self._was_on = gc.isenabled()
        gc.disable()

    def __exit__(self, *_: object) -> None:
        if self._was_on:
            gc.enable()
