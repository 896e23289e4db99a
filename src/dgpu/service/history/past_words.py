"""Rows of a history that travel to the history of another scheduler, and how far a history reaches back.

Both ends are this program, maybe in two versions: columns are named, and unknown ones are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from dgpu.service.results.file import StoredResult

SERVICE = "dgpu.scheduler.v1.PastTasks"

Cell = int | str | None
Part = Literal["tasks", "audit", "node_events", "results"]  # in this order


class FileState(msgspec.Struct, frozen=True, kw_only=True):
    """It differs after a history was rebuilt, or has continued after a gap. A copy then begins again."""

    file_id: int = 0
    lacks_until: int = 0


class Reach(msgspec.Struct, frozen=True, kw_only=True):
    """Tells which groups are in a history with all their events.

        1 ── (events) ── gap_from ── (no events) ── gap_until ── (events) ── index

    A history that begins in the middle has its events from `from_index` on.
    """

    index: int = 0  # the last group in it
    from_index: int = 0  # 0: it begins with the first group
    from_at: int = 0
    gap_from: int = 0
    gap_until: int = 0  # 0: there is no gap
    file_id: int = 0  # random: a history that is rebuilt gets another one

    @classmethod
    def of(cls, meta: Mapping[str, int]) -> Reach:
        return cls(**{name: meta.get(name, 0) for name in cls.__struct_fields__})

    @property
    def lacks_until(self) -> int:
        """Events up to this group may be missing. 0: none is."""
        return max(self.from_index, self.gap_until)

    @property
    def state(self) -> FileState:
        return FileState(file_id=self.file_id, lacks_until=self.lacks_until)

    def filled_from(self, source: Reach) -> Reach:
        """After all rows of `source` have been added that this history lacked."""
        lacks = source.lacks_until
        filled = self
        if lacks < self.from_index:
            from_at = source.from_at if lacks == source.from_index else self.from_at
            filled = msgspec.structs.replace(filled, from_index=lacks, from_at=from_at)
        if lacks <= self.gap_from:
            return msgspec.structs.replace(filled, gap_from=0, gap_until=0)
        return msgspec.structs.replace(filled, gap_until=min(self.gap_until, lacks))


class Cursor(msgspec.Struct, frozen=True, kw_only=True):
    """Where a page begins: after the row with this key."""

    part: Part = "tasks"
    after: tuple[int | str, ...] = ()  # empty: at the beginning


class PageAsk(msgspec.Struct, frozen=True, kw_only=True):
    cursor: Cursor
    upto: int  # rows of later groups are not wanted


class PastRows(msgspec.Struct, frozen=True, kw_only=True):
    table: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


class PastPage(msgspec.Struct, frozen=True, kw_only=True):
    tables: tuple[PastRows, ...] = ()
    results: tuple[StoredResult, ...] = ()  # of function calls; they are in a file of their own
    next: Cursor | None = None  # None: it was the last page


class Fill(msgspec.Struct, frozen=True, kw_only=True):
    """Adds a page; after the last one, `source` tells how far the history reaches now."""

    into: FileState  # a history in another state refuses it
    page: PastPage = PastPage()
    source: Reach | None = None


class ReachAsk(msgspec.Struct, frozen=True, kw_only=True):
    """The first question of each exchange."""

    cluster_id: str = ""  # of the scheduler that asks


class Done(msgspec.Struct, frozen=True, kw_only=True):
    pass
