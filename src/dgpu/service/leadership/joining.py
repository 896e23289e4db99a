"""A scheduler joins the others: its files must belong to their cluster, and its settings must be equal."""

from __future__ import annotations

import hashlib

import msgspec

from dgpu.core.model.settings import Settings
from dgpu.core.state import ClusterState
from dgpu.journal.checkpoint import last_index
from dgpu.journal.engine import Engine
from dgpu.journal.replicated import ReplicatedJournal
from dgpu.service.options import OptionsRefused, ServiceOptions
from dgpu.service.recovery.cluster_file import read_known


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
    return ReplicatedJournal.open(directory, engine, segment_bytes=options.segment_bytes)


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
