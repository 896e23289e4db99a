"""The list of machines that joined, equal on all schedulers: an agent must reach whichever of them leads.

The list is one key of the engine. Each scheduler merges it into its own list and stores the result.
"""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

import msgspec
import structlog

from dgpu.entry.ha.errors import HaFailure
from dgpu.journal.engine import EngineError
from dgpu.journal.etcd.connection import Connection, NoSpace
from dgpu.journal.etcd.settings import EtcdSettings
from dgpu.journal.etcd.txn import modified_at, put, txn
from dgpu.service.machines.roster import Roster, StoredJoin
from dgpu.service.sqlite_files import FileUnusable
from dgpu.wire.proto import etcd_pb2 as pb

_MAX_BYTES = 1 << 20  # of a request to etcd; about 4,000 machines

_log = structlog.get_logger("dgpu.ha")


def share_machines(directory: Path, settings: EtcdSettings) -> None:
    """Raises HaFailure. If another scheduler writes at the same time, the next call merges both."""
    roster, key = Roster(directory), settings.prefix.encode() + b"machines"
    connection = Connection(settings)
    try:
        found = connection.call("/etcdserverpb.KV/Range", pb.RangeRequest(key=key), pb.RangeResponse).kvs
        if found:
            roster.merge(msgspec.msgpack.decode(found[0].value, type=list[StoredJoin]))
        content = msgspec.msgpack.encode(roster.export(now_s=int(time.time())))
        if len(content) > _MAX_BYTES:
            _log.warning("machines_not_shared", bytes=len(content), limit=_MAX_BYTES)
        elif not found or found[0].value != content:
            before = modified_at(key, found[0].mod_revision if found else 0)
            connection.call("/etcdserverpb.KV/Txn", txn([before], [put(key, content)], []), pb.TxnResponse)
    except (EngineError, NoSpace, FileUnusable, sqlite3.Error, msgspec.DecodeError) as error:
        raise HaFailure(f"the list of machines is not shared: {error}") from error
    finally:
        connection.close()
