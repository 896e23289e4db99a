"""`--accept-lost-tail`: continues from the readable state, above every known number, and deletes nothing."""

from __future__ import annotations

import time
from pathlib import Path

import structlog

from dgpu.core.apply.table import apply
from dgpu.core.decide.time import LOSS_ACCEPTED
from dgpu.core.state import ClusterState
from dgpu.journal.durable import make_folder, sync_folder, write_file
from dgpu.journal.lock import FolderLock
from dgpu.journal.segments import (
    ARCHIVE_FOLDER,
    JOURNAL_FOLDER,
    StoredGroups,
    chain,
    live_name,
    live_segments,
    scan_segment,
)
from dgpu.journal.snapshot import load_newest, write_snapshot
from dgpu.service.follower.words import FOLLOWER_LOCK
from dgpu.service.history.lost import mark_lost
from dgpu.service.history.reader import HISTORY_NAME
from dgpu.service.recovery.witnesses import Outside
from dgpu.service.sqlite_files import FileUnusable

_FOLLOWER_PATIENCE_S = 30
_FIRST_SEGMENT_BYTES = 1 << 20

_log = structlog.get_logger("dgpu.server")


def accept_lost_tail(directory: Path, outside: Outside) -> bool:
    """Runs before the journal is opened. False: no group is missing.

    After an interruption, the next start refuses again, and accepting again completes it.
    """
    lock = FolderLock(directory)
    try:
        snapshot, _ = load_newest(directory)
        index = max(outside.index, snapshot.index)
        if _journal_end(directory) >= index:
            return False
        state, read_index = readable_state(directory)
        kept_at = _set_aside(directory, state, index)
        lost_tasks = _mark_history(directory, state, index)
    finally:
        lock.close()
    _log.warning(
        "lost_tail_accepted",
        read_up_to=read_index,
        continues_at=index + 1,
        lost_tasks=lost_tasks,
        kept_at=str(kept_at),
    )
    return True


def _journal_end(directory: Path) -> int:
    segments = live_segments(directory)
    return segments[-1].first_index - 1 + len(scan_segment(segments[-1]).records) if segments else 0


def readable_state(directory: Path) -> tuple[ClusterState, int]:
    """The newest state that snapshot and journal give together. Damage in the middle is still refused."""
    snapshot, _ = load_newest(directory)
    state, index = snapshot.state, snapshot.index
    for group in StoredGroups(chain(directory, index)):
        for event in group.events:
            apply(state, event)
        index = group.index
    return state, index


def _set_aside(directory: Path, state: ClusterState, index: int) -> Path:
    """Starts the journal again after `index`, with a snapshot. Earlier segments are kept unchanged."""
    # If this start dies before its epoch is durable, the next start waits instead.
    state.no_pass_before = LOSS_ACCEPTED
    for _ in range(2):  # both names: replay from an older snapshot could not cross the gap
        write_snapshot(directory, state, index=index, epoch=state.epoch)
    kept = directory / f"lost-tail-{time.time_ns() // 1_000_000}"
    make_folder(kept)
    for name in (JOURNAL_FOLDER, ARCHIVE_FOLDER):
        if (directory / name).exists():
            (directory / name).rename(kept / name)
    sync_folder(kept)
    make_folder(directory / JOURNAL_FOLDER)
    make_folder(directory / ARCHIVE_FOLDER)
    write_file(directory / JOURNAL_FOLDER / live_name(index + 1), bytes(_FIRST_SEGMENT_BYTES))
    sync_folder(directory / JOURNAL_FOLDER)
    sync_folder(directory)
    return kept


def _mark_history(directory: Path, state: ClusterState, index: int) -> int:
    path = directory / HISTORY_NAME
    if not path.exists():
        return 0
    lock = FolderLock(directory, FOLLOWER_LOCK, patience_s=_FOLLOWER_PATIENCE_S)
    try:
        return mark_lost(path, state, index=index, now_ms=time.time_ns() // 1_000_000)
    except FileUnusable:
        return 0  # it will be rebuilt from the journal
    finally:
        lock.close()
