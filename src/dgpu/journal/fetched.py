"""A directory that begins with the engine's snapshot: of a scheduler that joins, or that was away for so long that the
engine has deleted the next group.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from dgpu.journal.bundle import unpack_bundle
from dgpu.journal.checkpoint import Checkpoint, begin_after_snapshot
from dgpu.journal.durable import make_folder, sync_folder
from dgpu.journal.engine import Engine, EngineError, SnapshotReplaced, StoredSnapshot
from dgpu.journal.errors import SnapshotDamaged
from dgpu.journal.key_files import KEYS_FOLDER
from dgpu.journal.segments import JOURNAL_FOLDER, live_segments
from dgpu.journal.snapshot import PREVIOUS_NAME, SNAPSHOT_NAME, load_snapshot

_FETCHED = "fetched"
_ATTEMPTS = 5  # the leader may store a later snapshot meanwhile
_SOURCE = "the snapshot in the engine"


class Fetched(msgspec.Struct, frozen=True, kw_only=True):
    index: int  # of the snapshot
    kept_at: str = ""  # where the earlier files of the directory are; empty: there were none

    def __str__(self) -> str:
        kept = f"; earlier groups of this directory are in {self.kept_at}" if self.kept_at else ""
        return f"the engine's snapshot of group {self.index} was fetched, because earlier groups are deleted{kept}"


def begin_from_engine(directory: Path, engine: Engine) -> Fetched | None:
    """The directory gets the engine's snapshot in place of its own groups. None: the engine has no snapshot.

    The caller holds the locks of the directory. An interruption leaves a directory without groups: the next start
    fetches again. Raises EngineError, SnapshotDamaged or OSError.
    """
    staging = directory / _FETCHED
    with _removed(staging):
        stored = _fetch(engine, staging)
        if stored is None:
            return None
        kept_at = _set_aside(directory, stored.index)
        for name in (KEYS_FOLDER, SNAPSHOT_NAME):
            if (staging / name).exists():
                (staging / name).rename(directory / name)
        sync_folder(directory)
        begin_after_snapshot(directory, Checkpoint(index=stored.index, chain=stored.chain))
    return Fetched(index=stored.index, kept_at=kept_at)


def _fetch(engine: Engine, staging: Path) -> StoredSnapshot | None:
    for _ in range(_ATTEMPTS):
        stored = engine.snapshot()
        if stored is None:
            return None
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(staging)
        make_folder(staging)
        try:
            unpack_bundle(_checked(engine, stored), staging, _SOURCE)
        except SnapshotReplaced:
            continue
        snapshot = load_snapshot(staging / SNAPSHOT_NAME)
        if snapshot.index != stored.index:
            raise SnapshotDamaged(_SOURCE, f"is of group {snapshot.index}, not of group {stored.index}")
        return stored
    raise EngineError("the snapshot in the engine was replaced again and again while it was read")


def _checked(engine: Engine, stored: StoredSnapshot) -> Iterator[bytes]:
    seen = hashlib.sha256()
    for part in engine.snapshot_parts(stored):
        seen.update(part)
        yield part
    if seen.digest() != stored.sha256:
        raise SnapshotDamaged(_SOURCE, f"of group {stored.index} does not match its hash")


def _set_aside(directory: Path, index: int) -> str:
    """Nothing is deleted: groups that the engine never had may be among them. The journal goes first, so that an
    interruption cannot leave groups behind a gap.
    """
    names = (JOURNAL_FOLDER, SNAPSHOT_NAME, PREVIOUS_NAME, KEYS_FOLDER)
    found = [name for name in names if (directory / name).exists()]
    if not live_segments(directory) and found in ([], [JOURNAL_FOLDER]):
        return ""
    kept = directory / f"aside-before-{index}-{time.time_ns() // 1_000_000}"
    make_folder(kept)
    for name in found:
        (directory / name).rename(kept / name)
    sync_folder(kept)
    sync_folder(directory)
    return str(kept)


@contextlib.contextmanager
def _removed(folder: Path) -> Iterator[None]:
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)
