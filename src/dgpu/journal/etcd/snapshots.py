"""The snapshot in etcd: parts first, then its name and the floor in one transaction."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from dgpu.journal.engine import PART_BYTES, EngineError, SnapshotReplaced, StoredSnapshot, Term
from dgpu.journal.etcd.keys import FloorValue, Keys, encode
from dgpu.journal.etcd.txn import created_at, found_in, get, modified_at, put, txn
from dgpu.wire.proto import etcd_pb2 as pb

Transact = Callable[[pb.TxnRequest], Any]


def read_pointer(transact: Transact, keys: Keys) -> StoredSnapshot | None:
    found = found_in(transact(txn([], [get(keys.snapshot)], [])), 0)
    if found is None:
        return None
    try:
        return msgspec.msgpack.decode(found.value, type=StoredSnapshot)
    except msgspec.DecodeError as error:
        raise EngineError(f"the snapshot in etcd cannot be read by this version: {error}") from error


def read_parts(transact: Transact, keys: Keys, stored: StoredSnapshot) -> Iterator[bytes]:
    for number in range(stored.parts):
        key = keys.snapshot_part(stored.index, stored.fence, number)
        found = found_in(transact(txn([], [get(key)], [])), 0)
        if found is None:
            if read_pointer(transact, keys) != stored:
                raise SnapshotReplaced(f"the snapshot of group {stored.index} was replaced")
            raise EngineError(f"the snapshot of group {stored.index} in etcd lacks part {number}")
        yield bytes(found.value)


def write_parts(
    write: Callable[[pb.RequestOp], None], keys: Keys, index: int, fence: int, parts: Iterable[bytes]
) -> tuple[int, bytes]:
    """Returns their number, and the hash of all of them together."""
    seen = hashlib.sha256()
    count = 0
    for number, part in enumerate(parts):
        if len(part) > PART_BYTES:
            raise ValueError(
                f"part {number} of a snapshot has {len(part)} bytes, at most {PART_BYTES} are possible"
            )
        write(put(keys.snapshot_part(index, fence, number), part))
        seen.update(part)
        count = number + 1
    return count, seen.digest()


def move_floor(
    transact: Transact,
    keys: Keys,
    term: Term,
    stored: StoredSnapshot,
    floor: FloorValue,
    floor_revision: int,
) -> bool:
    """From now on the snapshot counts, and groups below the floor may be deleted. False: leader or floor changed."""
    request = txn(
        [created_at(keys.leader, term.fence), modified_at(keys.floor, floor_revision)],
        [put(keys.snapshot, encode(stored)), put(keys.floor, encode(floor))],
        [get(keys.snapshot)],
    )
    answer = transact(request)
    if answer.succeeded:
        return True
    found = found_in(answer, 0)
    return found is not None and found.value == encode(stored)  # an earlier try was applied
