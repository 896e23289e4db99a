"""Compares and exchanges stored output with another scheduler. Calls block: use a thread.

A run counts as copied when both schedulers have the same lease, the same total size and the same ranges of bytes. Each
part that travels has a SHA-256, and each part on disk a CRC that is checked when it is read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence

from dgpu.core.model.ids import LeaseId, TaskId
from dgpu.service.copies.words import Entry, OfferedRun, Page, RunKey, WantedRun
from dgpu.service.task_output.byte_ranges import Range, merged, uncovered
from dgpu.service.task_output.pack import OutputPart, decode, encode
from dgpu.service.task_output.store import LogStore

PAGE_RUNS = 200
ENTRIES_BYTES = 4 << 20  # of one message, before the part that exceeds it
FIRST_PAGE: RunKey = (TaskId(2**62), 0)
_PAGE = """SELECT task_id, attempt FROM parts WHERE total IS NOT NULL AND (task_id, attempt) < (?, ?)
    ORDER BY task_id DESC, attempt DESC LIMIT ?"""
_PARTS = "SELECT offset, end, total, lease_id FROM parts WHERE task_id = ? AND attempt = ?"
_PLACES = """SELECT offset, end, pack, place, total FROM parts WHERE task_id = ? AND attempt = ? AND lease_id = ?
    ORDER BY offset"""


class DamagedEntry(Exception):  # noqa: N818 - the name states the failure
    """A part did not arrive as it was sent."""


def offers(store: LogStore, runs: Iterable[RunKey]) -> tuple[OfferedRun, ...]:
    """Runs that are not stored, or whose last part has not arrived, are left out."""
    found = (store.find(*run) for run in runs)
    return tuple(
        OfferedRun(each.task_id, each.attempt, each.lease_id, each.end, each.ranges)
        for each in found
        if each is not None
    )


def page(store: LogStore, before: RunKey) -> Page:
    rows = [(TaskId(row[0]), int(row[1])) for row in store.select(_PAGE, (*before, PAGE_RUNS))]
    return Page(runs=offers(store, rows), before=rows[-1] if len(rows) == PAGE_RUNS else None)


def lacking(store: LogStore, runs: Iterable[OfferedRun]) -> list[WantedRun]:
    return [wanted for run in runs if (wanted := _lacking(store, run)) is not None]


def _lacking(store: LogStore, run: OfferedRun) -> WantedRun | None:
    rows = store.select(_PARTS, (run.task_id, run.attempt))
    if any(lease_id > run.lease_id for _, _, _, lease_id in rows):
        return None  # a later lease repeated the attempt: its output replaced this one
    own = [row for row in rows if row[3] == run.lease_id]
    held = merged((begin, end) for begin, end, _, _ in own)
    missing = tuple(gap for begin, end in run.ranges for gap in uncovered(held, begin, end))
    has_end = any(total == run.end for _, _, total, _ in own)
    if has_end and not missing:
        return None
    return WantedRun(run.task_id, run.attempt, run.lease_id, missing)


def entries(store: LogStore, wanted: Iterable[WantedRun]) -> tuple[Entry, ...]:
    """The last part of a run comes last: without it the other scheduler does not count the run as stored."""
    packed: list[Entry] = []
    size = 0
    for part in _parts(store, wanted):
        content = encode(part)
        packed.append(Entry(content, hashlib.sha256(content).digest()))
        size += len(content)
        if size >= ENTRIES_BYTES:
            break
    return tuple(packed)


def _parts(store: LogStore, wanted: Iterable[WantedRun]) -> Iterator[OutputPart]:
    for run in wanted:
        rows = store.select(_PLACES, (run.task_id, run.attempt, run.lease_id))
        needed = [row for row in rows if row[4] is None and _overlaps(run.ranges, (row[0], row[1]))]
        for _, _, pack, place, _ in (*needed, *(row for row in rows if row[4] is not None)):
            part = store.read(pack, place)
            if part is not None:
                yield part


def unpacked(received: Sequence[Entry]) -> list[OutputPart]:
    """Raises DamagedEntry."""
    parts = []
    for entry in received:
        part = decode(entry.content) if hashlib.sha256(entry.content).digest() == entry.sha256 else None
        if part is None:
            raise DamagedEntry("a part of output differs from its hash")
        parts.append(part)
    return parts


def leases_of(runs: Iterable[OfferedRun | WantedRun]) -> set[LeaseId]:
    return {run.lease_id for run in runs}


def _overlaps(ranges: Sequence[Range], row: Range) -> bool:
    return any(begin < row[1] and row[0] < end for begin, end in merged(ranges))
