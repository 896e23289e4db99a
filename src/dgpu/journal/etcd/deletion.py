"""Deletes groups that snapshots cover, and parts that no group names. Only keys under the prefix; never a compaction:
other programs may use the same etcd.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from dgpu.journal.engine import FenceLost, StoredSnapshot, Term
from dgpu.journal.etcd.connection import Connection
from dgpu.journal.etcd.keys import GroupValue, Keys, head_of, index_and_fence
from dgpu.journal.etcd.txn import created_at, delete, found_in, get, txn
from dgpu.wire.proto import etcd_pb2 as pb

_STEP = 1_000  # groups in one transaction: a larger one would stop other writes for long
_PAGE = 1_000

Transact = Callable[[pb.TxnRequest], Any]


def delete_groups(transact: Transact, connection: Connection, keys: Keys, term: Term, *, below: int) -> None:
    while True:
        request = pb.RangeRequest(key=keys.group(0), range_end=keys.group(below), limit=1, keys_only=True)
        found = connection.call("/etcdserverpb.KV/Range", request, pb.RangeResponse).kvs
        if not found:
            return
        first = keys.index_of_group(found[0].key)
        _delete(transact, keys, term, keys.group(first), keys.group(min(first + _STEP, below)))


def delete_orphans(
    transact: Transact, connection: Connection, keys: Keys, term: Term, *, floor: int, head: int
) -> None:
    """Parts below the floor; parts of groups that another leader committed; parts beyond the head that an earlier
    leader left. Under our own fence, a part beyond the head may belong to a commit on its way.
    """
    start = keys.parts_of(0)
    while True:
        request = pb.RangeRequest(key=start, range_end=keys.after_parts, limit=_PAGE, keys_only=True)
        found = connection.call("/etcdserverpb.KV/Range", request, pb.RangeResponse).kvs
        for name in sorted({keys.name_of_part(kv.key) for kv in found}):
            index, fence = index_and_fence(name)
            kept = (
                fence >= term.fence
                if index > head
                else index >= floor and _named(connection, keys, index, name)
            )
            if not kept:
                _delete(transact, keys, term, keys.part(name, 0), keys.part(name, 999_999))
        if len(found) < _PAGE:
            return
        start = found[-1].key + b"\0"


def delete_old_snapshots(transact: Transact, keys: Keys, term: Term, stored: StoredSnapshot | None) -> None:
    """All parts but those of the snapshot that counts. The leader itself stores no other one meanwhile."""
    first, end = keys.snapshot_parts
    if stored is None:
        _delete(transact, keys, term, first, end)
        return
    _delete(transact, keys, term, first, keys.snapshot_part(stored.index, stored.fence, 0))
    _delete(transact, keys, term, keys.snapshot_part(stored.index, stored.fence, stored.parts), end)


def _named(connection: Connection, keys: Keys, index: int, name: str) -> bool:
    request = pb.RangeRequest(key=keys.group(index))
    found = connection.call("/etcdserverpb.KV/Range", request, pb.RangeResponse).kvs
    return bool(found) and msgspec.msgpack.decode(found[0].value, type=GroupValue).part_name == name


def _delete(transact: Transact, keys: Keys, term: Term, first: bytes, end: bytes) -> None:
    """Under the fence: an old leader deletes nothing."""
    request = txn([created_at(keys.leader, term.fence)], [delete(first, end)], [get(keys.head)])
    answer = transact(request)
    if not answer.succeeded:
        kv = found_in(answer, 0)
        head = head_of(kv.value, kv.mod_revision) if kv is not None else None
        if head is not None:
            raise FenceLost(f"the leader key changed; ours was fence {term.fence}", head)
