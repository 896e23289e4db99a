"""`dgpu scheduler --rebuild-history`: creates the history again from the archive and the journal."""

from __future__ import annotations

import datetime as dt
import gc
from collections.abc import Callable
from pathlib import Path

from dgpu.core.apply.table import apply
from dgpu.journal.archive import earliest_state
from dgpu.journal.durable import sync_folder
from dgpu.journal.lock import FolderLock
from dgpu.journal.segments import StoredGroups, chain
from dgpu.service.follower.words import FOLLOWER_LOCK
from dgpu.service.history.lost import history_end
from dgpu.service.history.reader import HISTORY_NAME
from dgpu.service.history.writer import HistoryWriter, end_making, remove_history
from dgpu.service.recovery.witnesses import explained, look_outside

_MAX_ROWS = 50_000
_FOLLOWER_PATIENCE_S = 30


def rebuild_history(data_dir: Path | str, report: Callable[[str], None]) -> None:
    """Needs a directory without a running scheduler. The old history stays until the new one is complete.

    Raises JournalLocked if a scheduler runs, CorruptJournal if the journal cannot be read.
    """
    directory = Path(data_dir)
    lock = FolderLock(directory)
    try:
        follower_lock = FolderLock(directory, FOLLOWER_LOCK, patience_s=_FOLLOWER_PATIENCE_S)
        try:
            _rebuild(directory, report)
        finally:
            follower_lock.close()
    finally:
        lock.close()


def _rebuild(directory: Path, report: Callable[[str], None]) -> None:
    base = earliest_state(directory)
    if base.index:
        report(
            f"The history will reach back to group {base.index}, {_time(base.at)}; older segments are gone."
        )
    else:
        report("The history will reach back to the first group.")
    new = directory / f"{HISTORY_NAME}.new"
    remove_history(new)
    writer = HistoryWriter(new)
    state, index = base.state, base.index
    gc.freeze()
    try:
        if index:
            writer.seed(state, index=index)
        for group in StoredGroups(chain(directory, index)):
            for position, event in enumerate(group.events):
                apply(state, event)
                writer.note(event, state, index=group.index, position=position)
            index = group.index
            if writer.pending_rows >= _MAX_ROWS:
                writer.commit(index)
                report(f"Group {index}, {_time(state.last_at)}")
        writer.commit(index)
        while writer.trim(state.last_at):
            pass
    finally:
        writer.close()  # the last connection: SQLite merges its log into the file
        gc.unfreeze()
    target = directory / HISTORY_NAME
    known = history_end(target)
    if known.index > index:
        remove_history(new)
        raise explained(directory, index, look_outside(directory))
    remove_history(target)
    new.replace(target)
    end_making(target)
    sync_folder(directory)
    report(f"The history is complete up to group {index}, {_time(state.last_at)}.")


def _time(at: int) -> str:
    moment = dt.datetime.fromtimestamp(at / 1000, tz=dt.UTC)
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")
