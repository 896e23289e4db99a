"""Takes an existing journal over into an empty engine: its end, and a snapshot from which a standby can start.

Earlier groups stay in the directory of the first scheduler. The engine begins with the group after the snapshot.
"""

from __future__ import annotations

import msgspec

from dgpu.journal.bundle import pack_bundle
from dgpu.journal.engine import CLOSED, PART_BYTES, Candidate, EngineRefused, Head, StoredSnapshot
from dgpu.journal.etcd.connection import Connection
from dgpu.journal.etcd.keys import FloorValue, HeadValue, Keys, encode
from dgpu.journal.etcd.settings import EtcdSettings
from dgpu.journal.etcd.snapshots import write_parts
from dgpu.journal.etcd.txn import created_at, delete, found_in, get, modified_at, put, txn
from dgpu.journal.snapshot import SNAPSHOT_NAME
from dgpu.wire.proto import etcd_pb2 as pb

_TXN = "/etcdserverpb.KV/Txn"


class Founding(msgspec.Struct, frozen=True, kw_only=True):
    head: Head
    is_new: bool  # False: the engine had a journal that goes on


class Founder:
    def __init__(self, settings: EtcdSettings) -> None:
        self._connection = Connection(settings)
        self._keys = Keys(settings.prefix)

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

    def close_journal(self, *, index: int, successor: str) -> str:
        """Puts a leader key without a lease: no scheduler can lead any more. Returns why not; empty: it is done."""
        key = self._keys.leader
        leader, head_kv = self._read(key, self._keys.head)
        name = CLOSED + successor
        value = msgspec.json.encode(Candidate(name=name, http="", grpc="", nonce=""))
        if leader is not None and leader.value == value:
            return ""
        if leader is not None:
            leads = msgspec.json.decode(leader.value, type=Candidate)
            return (
                f"the journal is {leads.name}"
                if leads.is_closed
                else f"scheduler {leads.name} leads. Stop it first"
            )
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
        self._write(delete(*self._keys.snapshot_parts))  # of an attempt that did not end
        parts = pack_bundle([(SNAPSHOT_NAME, len(content), [content])], PART_BYTES)
        count, sha256 = write_parts(self._write, self._keys, index, 0, parts)
        stored = StoredSnapshot(index, epoch, sha256, count, sha256)
        value = HeadValue(index=index, epoch=epoch, chain=sha256, fence=0)
        request = txn(
            [
                modified_at(self._keys.head, head_kv.mod_revision if head_kv else 0),
                modified_at(self._keys.floor, floor_kv.mod_revision if floor_kv else 0),
            ],
            [
                put(self._keys.head, encode(value)),
                put(self._keys.floor, encode(FloorValue(index=index + 1, chain=sha256))),
                put(self._keys.snapshot, encode(stored)),
            ],
            [get(self._keys.head)],
        )
        answer = self._connection.call(_TXN, request, pb.TxnResponse)
        found = None if answer.succeeded else found_in(answer, 0)
        if not answer.succeeded and (found is None or found.value != encode(value)):
            raise EngineRefused("another scheduler wrote to the engine at the same time. Try again")
        revision = found.mod_revision if found is not None else answer.header.revision
        return Founding(head=Head(index=index, epoch=epoch, chain=sha256, revision=revision), is_new=True)

    def _write(self, operation: pb.RequestOp) -> None:
        self._connection.call(_TXN, txn([], [operation], []), pb.TxnResponse)

    def _read(self, *keys: bytes) -> list[pb.KeyValue | None]:
        """A linearisable read of all keys at one moment."""
        answer = self._connection.call(_TXN, txn([], [get(key) for key in keys], []), pb.TxnResponse)
        return [found_in(answer, number) for number in range(len(keys))]
