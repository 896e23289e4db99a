"""Sealed segments, compressed and kept for some time, with a state for each, so that a replay can begin there."""

from __future__ import annotations

import itertools
import os
import zlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from dgpu.journal.durable import make_folder, sync_folder, write_pieces
from dgpu.journal.errors import CorruptJournal, SnapshotDamaged
from dgpu.journal.segments import (
    ARCHIVE_FOLDER,
    JOURNAL_FOLDER,
    Segment,
    archived_name,
    archived_segments,
    chain,
    first_at,
    live_segments,
)
from dgpu.journal.snapshot import (
    PREVIOUS_NAME,
    SNAPSHOT_NAME,
    Snapshot,
    archived_snapshot_name,
    archived_snapshots,
    load_snapshot,
    no_snapshot,
    seal_damage,
    snapshot_index,
)

# Measured on 16 MiB of small submits and reports: level 1 packs to 23.8 % in 0.13 s, level 6 to 21.0 % in 0.45 s, level
# 9 to 20.7 % in 2.9 s. An eighth less space does not justify three times the work on a machine that runs tasks.
PACK_LEVEL = 1
_PIECE_BYTES = 1 << 20
_GZIP = zlib.MAX_WBITS | 16  # of zlib: with the header of gzip
_MAX_TORN_FILES = 16
_DAY_MS = 86_400_000


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    max_bytes: int = 10 << 30
    max_age_ms: int = 30 * _DAY_MS


def pack_covered(directory: Path, covered_index: int) -> list[Path]:
    """Compresses the sealed segments whose groups are all at or below `covered_index`: both snapshots and the history
    have them. The segment being written is never touched.
    """
    make_folder(directory / ARCHIVE_FOLDER)
    segments = live_segments(directory)
    packed: list[Path] = []
    for segment, following in itertools.pairwise(segments):
        last_index = following.first_index - 1
        if last_index > covered_index:
            break
        packed.append(_pack(directory, segment, last_index))
    return packed


def prune(directory: Path, retention: Retention, *, now_ms: int) -> list[Path]:
    """Removes the oldest segments until the rest is within bounds, and the states that no segment follows.

    `now_ms` and the age of a segment are times of the journal. Times of files come from the wall clock, which may have
    been wrong when a file was written, or may be wrong now.
    """
    sizes = {path: path.stat().st_size for path in (directory / ARCHIVE_FOLDER).glob("*.gz")}
    total_bytes = sum(sizes.values())
    segments = archived_segments(directory)
    removed: list[Path] = []
    while segments:
        is_too_much = total_bytes > retention.max_bytes
        if not is_too_much and not _is_too_old(directory, segments, now_ms - retention.max_age_ms):
            break
        oldest = segments.pop(0)
        doomed = [oldest.path, *_states_before(directory, oldest.last_index or 0)]
        for path in doomed:
            total_bytes -= sizes.pop(path, 0)
            path.unlink(missing_ok=True)
        removed += doomed
    torn = sorted((directory / JOURNAL_FOLDER).glob("torn-*"), key=lambda path: path.stat().st_mtime_ns)
    for path in torn[:-_MAX_TORN_FILES]:
        path.unlink(missing_ok=True)
        removed.append(path)
    return removed


def _is_too_old(directory: Path, archived: list[Segment], before_ms: int) -> bool:
    """The age of the first segment: it ends where the next one begins. A segment of unknown age is kept."""
    following = next(iter([*archived[1:], *live_segments(directory)]), None)
    ended_at = None if following is None else first_at(following)
    return ended_at is not None and ended_at < before_ms


def earliest_state(directory: Path) -> Snapshot:
    """The oldest state from which every later group can still be replayed."""
    return _first_complete(directory, [None, *_snapshots(directory)])


def latest_state(directory: Path, *, upto_index: int) -> Snapshot | None:
    """The newest state at or before `upto_index`, or None if a replay can no longer begin that early."""
    candidates = [path for path in reversed(_snapshots(directory)) if _claimed_index(path) <= upto_index]
    try:
        return _first_complete(directory, [*candidates, None])
    except CorruptJournal:
        return None


def _first_complete(directory: Path, candidates: list[Path | None]) -> Snapshot:
    gap: CorruptJournal | None = None
    for path in candidates:
        try:
            chain(directory, 0 if path is None else _claimed_index(path))
            return no_snapshot() if path is None else load_snapshot(path)
        except CorruptJournal as error:
            gap = gap or error
        except SnapshotDamaged:
            continue  # the scheduler reported it when it recovered
    raise gap or CorruptJournal(str(directory), 0, "there is no state to start from")


def _snapshots(directory: Path) -> list[Path]:
    """Oldest first."""
    usual = [directory / PREVIOUS_NAME, directory / SNAPSHOT_NAME]
    return [*(path for _, path in archived_snapshots(directory)), *(path for path in usual if path.exists())]


def _claimed_index(path: Path) -> int:
    return int(path.name.split("-")[1].split(".")[0]) if path.suffix == ".gz" else snapshot_index(path)


def _pack(directory: Path, segment: Segment, last_index: int) -> Path:
    archive = directory / ARCHIVE_FOLDER
    written_at = segment.path.stat().st_mtime_ns
    target = archive / archived_name(segment.first_index, last_index)
    write_pieces(target, _packed(segment.path))
    os.utime(target, ns=(written_at, written_at))
    _keep_state(directory, segment.first_index)
    sync_folder(archive)
    segment.path.unlink()
    sync_folder(segment.path.parent)
    return target


def _keep_state(directory: Path, first_index: int) -> None:
    """One state for each compressed segment, so that a replay can begin after it when older segments are gone."""
    previous = directory / PREVIOUS_NAME
    index = snapshot_index(previous)
    kept = archived_snapshots(directory)
    if not index or (kept and kept[-1][0] >= first_index) or seal_damage(previous):
        return
    write_pieces(directory / ARCHIVE_FOLDER / archived_snapshot_name(index), _packed(previous))


def _packed(path: Path) -> Iterator[bytes]:
    """Reads and compresses piece by piece. The C library would keep the 40 MiB of a whole segment."""
    packer = zlib.compressobj(PACK_LEVEL, wbits=_GZIP)
    with path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            yield packer.compress(piece)
    yield packer.flush()


def _states_before(directory: Path, index: int) -> list[Path]:
    return [path for state_index, path in archived_snapshots(directory) if state_index < index]
