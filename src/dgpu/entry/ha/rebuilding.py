"""The files of a scheduler that starts from a snapshot made elsewhere."""

from __future__ import annotations

from pathlib import Path

from dgpu.entry.ha.errors import HaFailure
from dgpu.journal.durable import make_folder, sync_folder, write_file
from dgpu.journal.errors import JournalError
from dgpu.journal.segments import ARCHIVE_FOLDER, JOURNAL_FOLDER, live_name
from dgpu.journal.snapshot import Snapshot, decode_snapshot, write_snapshot

_FIRST_SEGMENT_BYTES = 1 << 20


def rebuild_directory(directory: Path, content: bytes, source: str) -> Snapshot:
    """The journal begins again after the snapshot. Raises HaFailure."""
    try:
        snapshot = decode_snapshot(content, source)
    except JournalError as error:
        raise HaFailure(f"{error}. Nothing was changed") from error
    make_folder(directory)
    for _ in range(2):  # both names: a replay from an older snapshot could not reach the journal
        write_snapshot(directory, snapshot.state, index=snapshot.index, epoch=snapshot.epoch)
    make_folder(directory / ARCHIVE_FOLDER)
    make_folder(directory / JOURNAL_FOLDER)
    write_file(directory / JOURNAL_FOLDER / live_name(snapshot.index + 1), bytes(_FIRST_SEGMENT_BYTES))
    sync_folder(directory / JOURNAL_FOLDER)
    sync_folder(directory)
    return snapshot
