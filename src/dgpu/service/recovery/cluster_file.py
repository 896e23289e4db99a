"""Facts about the cluster outside the journal: one small synced file, `cluster.json`."""

from __future__ import annotations

from pathlib import Path

import msgspec

from dgpu.journal.durable import sync_folder, write_file
from dgpu.journal.errors import JournalError

CLUSTER_NAME = "cluster.json"


class KnownCluster(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`heard_*`: from nodes that obeyed an epoch which the journal does not have. An operator must accept that."""

    cluster_id: str = ""
    epoch: int = 0
    nonce: str = ""
    heard_epoch: int = 0
    heard_task: int = 0
    heard_from: str = ""


def read_known(directory: Path) -> KnownCluster:
    path = directory / CLUSTER_NAME
    try:
        return msgspec.json.decode(path.read_bytes(), type=KnownCluster)
    except FileNotFoundError:
        return KnownCluster()
    except msgspec.DecodeError as error:
        raise JournalError(
            f"{path} cannot be read: {error}. It holds the highest epoch, separate from the journal. Restore it, or "
            f"move it away if the journal and the history are complete"
        ) from None


def write_known(directory: Path, known: KnownCluster) -> None:
    """The file is durable when the call returns."""
    write_file(directory / CLUSTER_NAME, msgspec.json.encode(known) + b"\n")
    sync_folder(directory)


def hear(directory: Path, *, epoch: int, task_id: int, node_id: str) -> None:
    """Stores the highest values for the start that accepts them."""
    known = read_known(directory)
    if epoch <= known.heard_epoch and task_id <= known.heard_task:
        return
    write_known(
        directory,
        msgspec.structs.replace(
            known,
            heard_epoch=max(epoch, known.heard_epoch),
            heard_task=max(task_id, known.heard_task),
            heard_from=node_id,
        ),
    )
