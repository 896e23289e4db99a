"""Moves local groups that the engine does not have out of the journal. Nothing is deleted."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from dgpu.journal.durable import make_folder, sync_folder, write_file
from dgpu.journal.format import record_bytes
from dgpu.journal.segments import (
    ARCHIVE_FOLDER,
    JOURNAL_FOLDER,
    Segment,
    archived_segments,
    live_name,
    live_segments,
    read_segment,
    scan_segment,
)
from dgpu.journal.snapshot import PREVIOUS_NAME, SNAPSHOT_NAME, archived_snapshots, snapshot_index


class SetAside(msgspec.Struct, frozen=True, kw_only=True):
    """Groups that were in local files, but not in the engine's journal."""

    first_index: int
    last_index: int
    kept_at: str

    def __str__(self) -> str:
        return (
            f"local groups {self.first_index} to {self.last_index} are not in the engine's journal; they were set "
            f"aside in {self.kept_at}"
        )


def set_aside_after(directory: Path, index: int, last_index: int) -> SetAside:
    """The journal then ends with group `index`. Call it while no journal is open on the directory.

    The files move from the last one to the first, so an interruption leaves a journal without gaps.
    """
    kept = directory / f"aside-{index + 1}-{time.time_ns() // 1_000_000}"
    make_folder(kept)
    sync_folder(directory)
    for path in _later_snapshots(directory, index):
        path.rename(kept / path.name)
    segments = sorted(
        [*live_segments(directory), *archived_segments(directory)],
        key=lambda one: one.first_index,
        reverse=True,
    )
    for segment in segments:
        if segment.first_index > index:
            segment.path.rename(kept / segment.path.name)
        elif _last_of(segment) > index:
            _shorten(directory, segment, index, kept)
    for folder in (kept, directory / JOURNAL_FOLDER, directory / ARCHIVE_FOLDER, directory):
        if folder.is_dir():
            sync_folder(folder)
    return SetAside(first_index=index + 1, last_index=last_index, kept_at=str(kept))


def _later_snapshots(directory: Path, index: int) -> list[Path]:
    usual = [directory / SNAPSHOT_NAME, directory / PREVIOUS_NAME]
    later = [path for path in usual if snapshot_index(path) > index]
    return later + [path for at, path in archived_snapshots(directory) if at > index]


def _last_of(segment: Segment) -> int:
    if segment.last_index is not None:
        return segment.last_index
    return segment.first_index - 1 + len(scan_segment(segment).records)


def _shorten(directory: Path, segment: Segment, index: int, kept: Path) -> None:
    """Copies the whole segment, then replaces it by its first groups."""
    content = read_segment(segment)
    records = scan_segment(segment).records
    last = records[index - segment.first_index]
    name = live_name(segment.first_index)
    write_file(kept / name, content)
    sync_folder(kept)
    write_file(directory / JOURNAL_FOLDER / name, content[: last.offset + record_bytes(len(last.payload))])
    if segment.last_index is not None:
        segment.path.rename(kept / segment.path.name)
