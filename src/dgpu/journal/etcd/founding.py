"""Takes an existing journal over into an empty engine: its end, and a snapshot from which a standby can start.

Earlier groups stay in the directory of the first scheduler. The engine begins with the group after the snapshot.
"""

from __future__ import annotations

import hashlib
import zlib

import msgspec

from dgpu.journal.engine import Candidate, EngineRefused, Head
from dgpu.journal.etcd.connection import Connection
from dgpu.journal.etcd.keys import PART_BYTES, FloorValue, HeadValue, Keys, encode
from dgpu.journal.etcd.settings import EtcdSettings
from dgpu.journal.etcd.txn import created_at, delete, found_in, get, modified_at, put, txn
from dgpu.wire.proto import etcd_pb2 as pb

_CLOSED = "closed, and goes on in the single scheduler of "
_TXN = "/etcdserverpb.KV/Txn"


class StoredSnapshot(msgspec.Struct, frozen=True, array_like=True):
    index: int
    epoch: int
    parts: int
    sha256: bytes


class Founding(msgspec.Struct, frozen=True, kw_only=True):
    head: Head
    is_new: bool  # False: the engine had a journal that goes on


class SnapshotStore:
    """The snapshot that new standbys start from, in parts, compressed."""

    def __init__(self, settings: EtcdSettings) -> None:
        self._connection = Connection(settings)
        self._keys = Keys(settings.prefix)
        self._pointer = settings.prefix.encode() + b"snapshot"

    def close(self) -> None:
        self._connection.close()

    def found(self, content: bytes, *, index: int, epoch: int) -> Founding:
        """Begins the journal of the engine after `index`, unless a scheduler has committed there already.

        Raises EngineRefused if the engine's journal ends before `index`: it is another one, or an older one.
        """
        head_kv, floor_kv = self._read(self._keys.head, self._keys.floor)
        if head_kv is not None:
            value = msgspec.msgpack.decode(head_kv.value, type=HeadValue)
            head = Head(
                index=value.index, epoch=value.epoch, chain=value.chain, revision=head_kv.mod_revision
            )
            if value.fence:
                if value.index < index:
                    raise EngineRefused(
                        f"the engine's journal ends with group {value.index}, the directory with {index}: they are not "
                        f"the same journal. Start again with an empty engine: dgpu ha leave, then dgpu ha init"
                    )
                return Founding(head=head, is_new=False)
            if (value.index, value.epoch) == (index, epoch):
                return Founding(head=head, is_new=False)
        return self._begin(content, index, epoch, head_kv, floor_kv)

    def load(self) -> tuple[StoredSnapshot, bytes] | None:
        """None: the journal began in the engine. Raises EngineRefused for a damaged one."""
        (pointer,) = self._read(self._pointer)
        if pointer is None:
            return None
        stored = msgspec.msgpack.decode(pointer.value, type=StoredSnapshot)
        pieces = [self._read(self._part(stored.index, number))[0] for number in range(stored.parts)]
        packed = b"".join(kv.value for kv in pieces if kv is not None)
        if hashlib.sha256(packed).digest() != stored.sha256:
            raise EngineRefused(f"the snapshot of group {stored.index} in the engine is not complete")
        return stored, zlib.decompress(packed)

    def close_journal(self, *, index: int, successor: str) -> str:
        """Puts a leader key without a lease: no scheduler can lead any more. Returns why not; empty: it is done."""
        key = self._keys.leader
        leader, head_kv = self._read(key, self._keys.head)
        name = _CLOSED + successor
        value = msgspec.json.encode(Candidate(name=name, http="", grpc="", nonce=""))
        if leader is not None and leader.value == value:
            return ""
        if leader is not None:
            leads = msgspec.json.decode(leader.value, type=Candidate).name
            return f"the journal is {leads}" if leads.startswith(_CLOSED) else f"{leads} leads. Stop it first"
        head = msgspec.msgpack.decode(head_kv.value, type=HeadValue) if head_kv is not None else None
        if head is not None and head.index > index:
            return (
                f"the directory ends with group {index}, the cluster with {head.index}. Start this scheduler until it "
                f"has caught up, or leave with the other one"
            )
        unchanged = [
            created_at(key, 0),
            modified_at(self._keys.head, head_kv.mod_revision if head_kv is not None else 0),
        ]
        answer = self._connection.call(_TXN, txn(unchanged, [put(key, value)], [get(key)]), pb.TxnResponse)
        found = None if answer.succeeded else found_in(answer, 0)
        is_done = answer.succeeded or (found is not None and found.value == value)
        return "" if is_done else "another scheduler took over at the same time. Stop it first"

    def _begin(
        self,
        content: bytes,
        index: int,
        epoch: int,
        head_kv: pb.KeyValue | None,
        floor_kv: pb.KeyValue | None,
    ) -> Founding:
        packed = zlib.compress(content, 3)
        pieces = [packed[place : place + PART_BYTES] for place in range(0, len(packed), PART_BYTES)]
        self._write(delete(self._part(0, 0), self._pointer + b"0"))  # of an attempt that did not end
        for number, piece in enumerate(pieces):
            self._write(put(self._part(index, number), piece))
        sha256 = hashlib.sha256(packed).digest()
        stored = StoredSnapshot(index=index, epoch=epoch, parts=len(pieces), sha256=sha256)
        value = HeadValue(index=index, epoch=epoch, chain=sha256, fence=0)
        request = txn(
            [
                modified_at(self._keys.head, head_kv.mod_revision if head_kv else 0),
                modified_at(self._keys.floor, floor_kv.mod_revision if floor_kv else 0),
            ],
            [
                put(self._keys.head, encode(value)),
                put(self._keys.floor, encode(FloorValue(index=index + 1, chain=sha256))),
                put(self._pointer, encode(stored)),
            ],
            [get(self._keys.head)],
        )
        answer = self._connection.call(_TXN, request, pb.TxnResponse)
        found = None if answer.succeeded else found_in(answer, 0)
        if not answer.succeeded and (found is None or found.value != encode(value)):
            raise EngineRefused("another scheduler wrote to the engine at the same time. Try again")
        revision = found.mod_revision if found is not None else answer.header.revision
        return Founding(head=Head(index=index, epoch=epoch, chain=sha256, revision=revision), is_new=True)

    def _part(self, index: int, number: int) -> bytes:
        return self._pointer + b"/%020d/%06d" % (index, number)

    def _write(self, operation: pb.RequestOp) -> None:
        self._connection.call(_TXN, txn([], [operation], []), pb.TxnResponse)

    def _read(self, *keys: bytes) -> list[pb.KeyValue | None]:
        """A linearisable read of all keys at one moment."""
        answer = self._connection.call(_TXN, txn([], [get(key) for key in keys], []), pb.TxnResponse)
        return [found_in(answer, number) for number in range(len(keys))]
