"""A scheduler joins the others: its files must belong to their cluster, and its settings must be equal."""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path

import msgspec
import structlog

from dgpu.core.model.settings import Settings
from dgpu.core.state import ClusterState
from dgpu.journal.checkpoint import last_index
from dgpu.journal.engine import BelowFloor, Engine, EngineUnavailable
from dgpu.journal.fetched import begin_from_engine
from dgpu.journal.lock import FolderLock
from dgpu.journal.replicated import ReplicatedJournal
from dgpu.service.follower.words import FOLLOWER_LOCK
from dgpu.service.leadership.shared_keys import refuse_other_keys
from dgpu.service.options import OptionsRefused, ServiceOptions
from dgpu.service.recovery.cluster_file import read_known

_FETCHES = 5
_FOLLOWER_PATIENCE_S = 30.0

_log = structlog.get_logger("dgpu.leadership")


def open_copy(options: ServiceOptions, engine: Engine) -> ReplicatedJournal:
    """The local copy of the journal. Raises EngineUnavailable, or an error that an operator must handle."""
    directory = options.data_dir
    if not engine.head().index and (last := last_index(directory)):
        raise OptionsRefused(
            f"storage.journal: the journal in etcd is empty, but {directory} has {last} groups of a scheduler that was "
            f"alone. Start with an empty storage.snapshot_dir for a new cluster, or with storage.journal: file to "
            f"continue the old one."
        )
    engine.identify(read_known(directory).cluster_id)
    if not options.accept_new_keys:
        refuse_other_keys(directory, engine)
    for _ in range(_FETCHES):
        try:
            return ReplicatedJournal.open(directory, engine, segment_bytes=options.segment_bytes)
        except BelowFloor:  # also once more: the leader may store a later snapshot meanwhile
            _fetch_snapshot(directory, engine)
    raise EngineUnavailable("the floor moves faster than the engine's snapshot can be fetched")


def _fetch_snapshot(directory: Path, engine: Engine) -> None:
    """For a scheduler that was away for long, or is new. No follower may write meanwhile: that of a killed scheduler
    may still be ending.
    """
    with contextlib.ExitStack() as held:
        for lock in (
            FolderLock(directory),
            FolderLock(directory, FOLLOWER_LOCK, patience_s=_FOLLOWER_PATIENCE_S),
        ):
            held.callback(lock.close)
        fetched = begin_from_engine(directory, engine)
    if fetched is not None:
        _log.warning("snapshot_fetched", index=fetched.index, detail=str(fetched))


def settings_hash(settings: Settings) -> str:
    return hashlib.sha256(msgspec.json.encode(settings, order="deterministic")).hexdigest()[:12]


def refuse_other_settings(own: Settings, state: ClusterState) -> None:
    """Raises OptionsRefused. The settings of the journal are those of the last epoch."""
    if not state.epoch or own == state.settings:
        return
    names = [
        name for name in Settings.__struct_fields__ if getattr(own, name) != getattr(state.settings, name)
    ]
    raise OptionsRefused(
        f"this scheduler has other settings than the one that leads ({', '.join(names)} differ; hash "
        f"{settings_hash(own)}, theirs {settings_hash(state.settings)}). Make scheduler.yaml equal on all schedulers. "
        f"To change settings: stop the standbys, restart the master with the new file, then start the standbys with it."
    )
