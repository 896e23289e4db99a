"""etcd as the engine: the leader key, and commits that compare it and the head."""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from dgpu.journal.engine import (
    NOT_KEPT,
    PART_BYTES,
    Candidate,
    EngineError,
    EngineFull,
    EngineHealth,
    EngineRefused,
    EngineUnavailable,
    FenceLost,
    Head,
    HeadMoved,
    Leader,
    StateDigest,
    StoredSnapshot,
    Term,
    boottime_ms,
    extended,
    refuse_other_cluster,
)
from dgpu.journal.etcd.connection import Connection, LeaseExists, NoLease, NoSpace
from dgpu.journal.etcd.deletion import delete_groups, delete_old_snapshots, delete_orphans
from dgpu.journal.etcd.keys import (
    LAYOUT,
    FloorValue,
    GroupValue,
    HeadValue,
    Keys,
    Meta,
    encode,
    head_of,
    pack,
    part_name,
)
from dgpu.journal.etcd.reading import GroupReader
from dgpu.journal.etcd.settings import EtcdSettings
from dgpu.journal.etcd.snapshots import move_floor, read_parts, read_pointer, write_parts
from dgpu.journal.etcd.txn import created_at, found_in, get, modified_at, put, txn
from dgpu.journal.etcd.watch import KeyWatch
from dgpu.wire.proto import etcd_pb2 as pb

_FULL = "the quota of etcd is used up: compact and defragment etcd, or raise its quota, then disarm the NOSPACE alarm"


class EtcdEngine:
    def __init__(self, settings: EtcdSettings) -> None:
        self._settings = settings
        self._connection = Connection(settings)
        self._keys = Keys(settings.prefix)
        self._reader = GroupReader(self._connection, self._keys)
        self._undecided: tuple[int, int, bytes] | None = None  # the commit whose outcome is unknown
        self._watch: KeyWatch | None = None
        self._lock = threading.Lock()

    def identify(self, cluster_id: str) -> str:
        key = self._keys.meta
        then = [put(key, encode(Meta(cluster_id=cluster_id)))] if cluster_id else [get(key)]
        answer = self._txn(txn([created_at(key, 0)], then, [get(key)]))
        found = cluster_id if answer.succeeded else None
        if found is None:
            kv = found_in(answer, 0)
            meta = msgspec.msgpack.decode(kv.value if kv else b"", type=Meta)
            if meta.layout > LAYOUT:
                raise EngineRefused(
                    f"a newer version of dgpu wrote the keys under {self._settings.prefix!r}: use that version or a "
                    f"later one"
                )
            found = meta.cluster_id
        refuse_other_cluster(found, cluster_id, f"etcd, prefix {self._settings.prefix!r},")
        return found

    def head(self) -> Head:
        return self._leader_and_head()[1]

    def floor(self) -> int:
        return self._floor()[0].index

    def leader(self) -> Leader | None:
        kv = self._leader_and_head()[0]
        return None if kv is None else _leader_of(kv)

    def campaign(self, candidate: Candidate) -> Term | None:
        if self.leader() is not None:
            return None
        asked_at = boottime_ms()
        lease_id = secrets.randbits(62) + 1  # never used before
        ttl_s = self._grant(lease_id)
        key = self._keys.leader
        request = txn(
            [created_at(key, 0)],
            [put(key, msgspec.json.encode(candidate), lease_id=lease_id)],
            [get(key)],
        )
        try:
            answer = self._txn(request)
        except (EngineError, NoLease) as error:
            # The transaction may still be applied: without its lease it cannot be.
            self._revoke_if_possible(lease_id)
            if isinstance(error, NoLease):
                raise EngineUnavailable("the lease ended before the election did") from error
            raise
        fence = answer.header.revision
        if not answer.succeeded:
            kv = found_in(answer, 0)
            if kv is None or kv.lease != lease_id:
                self._revoke_if_possible(lease_id)
                return None
            fence = kv.create_revision  # an earlier try of the same transaction was applied
        return Term(fence=fence, lease_id=lease_id, ttl_ms=ttl_s * 1_000, granted_at_ms=asked_at)

    def renew(self, term: Term) -> None:
        # The method is a stream. With one request it is the same on the wire as a single call.
        request = pb.LeaseKeepAliveRequest(ID=term.lease_id)
        answer = self._call("/etcdserverpb.Lease/LeaseKeepAlive", request, pb.LeaseKeepAliveResponse)
        if answer.TTL <= 0:
            self.confirm(term)  # a member may be behind: only a quorum read proves the loss
            raise EngineUnavailable(f"a member of etcd does not know lease {term.lease_id}")

    def confirm(self, term: Term) -> None:
        kv, head = self._leader_and_head()
        _check_fence(term, kv, head)

    def commit(self, term: Term, before: Head, index: int, epoch: int, record: bytes) -> Head:
        if index != before.index + 1:
            raise ValueError(f"group {index} cannot follow group {before.index}")
        chain = extended(before.chain, record)
        wanted = Head(index=index, epoch=epoch, chain=chain)
        mark = (term.fence, index, chain)
        maybe_applied = self._undecided == mark
        self._undecided = mark  # until an answer decides
        try:
            head = self._committed(term, before, wanted, record)
        except NoSpace as full:
            head = self._despite_no_space(
                term, before, wanted, maybe_applied=maybe_applied or full.maybe_applied
            )
        except FenceLost:
            self._undecided = None
            raise
        self._undecided = None
        return head

    def records(self, first_index: int, last_index: int) -> list[bytes]:
        return self._reader.records(first_index, last_index, self.floor)

    def chain_at(self, index: int) -> bytes | None:
        if index == 0 and self.floor() == 1:
            return b""
        answer = self._txn(txn([], [get(self._keys.group(index)), get(self._keys.floor)], []))
        group, floor = found_in(answer, 0), found_in(answer, 1)
        if group is not None:
            return msgspec.msgpack.decode(group.value, type=GroupValue).chain
        if floor is not None:
            value = msgspec.msgpack.decode(floor.value, type=FloorValue)
            return value.chain if value.index == index + 1 else None
        return None

    def snapshot(self) -> StoredSnapshot | None:
        return read_pointer(self._txn, self._keys)

    def snapshot_parts(self, stored: StoredSnapshot) -> Iterator[bytes]:
        return read_parts(self._txn, self._keys, stored)

    def store_snapshot(
        self, term: Term, index: int, epoch: int, parts: Iterable[bytes], *, kept_from: int = NOT_KEPT
    ) -> None:
        kv, head = self._leader_and_head()
        _check_fence(term, kv, head)
        floor, revision = self._floor()
        if index > head.index:
            raise ValueError(f"group {index} is not committed: the head is at {head.index}")
        last = self.snapshot()
        if last is not None and index <= last.index:
            return
        kept_from = max(floor.index, min(index + 1, kept_from))
        chain, chain_before = self.chain_at(index), self.chain_at(kept_from - 1)
        if chain is None or chain_before is None:
            raise EngineUnavailable(f"group {index} disappeared while its snapshot was stored")
        count, sha256 = write_parts(
            lambda operation: self._write(term, operation), self._keys, index, term.fence, parts
        )
        stored = StoredSnapshot(index, epoch, chain, count, sha256, term.fence)
        floor = FloorValue(index=kept_from, chain=chain_before)
        if not move_floor(self._txn, self._keys, term, stored, floor, revision):
            self.confirm(term)
            raise EngineUnavailable("the floor was moved by another call")

    def delete_covered(self, term: Term) -> None:
        kv, head = self._leader_and_head()
        _check_fence(term, kv, head)
        floor, _ = self._floor()
        delete_groups(self._txn, self._connection, self._keys, term, below=floor.index)
        delete_orphans(self._txn, self._connection, self._keys, term, floor=floor.index, head=head.index)
        delete_old_snapshots(self._txn, self._keys, term, self.snapshot())

    def digest(self) -> StateDigest | None:
        kv = found_in(self._txn(txn([], [get(self._keys.digest)], [])), 0)
        return None if kv is None else msgspec.msgpack.decode(kv.value, type=StateDigest)

    def publish_digest(self, term: Term, digest: StateDigest) -> None:
        self._write(term, put(self._keys.digest, encode(digest)))

    def key_prints(self) -> dict[str, str]:
        kv = found_in(self._txn(txn([], [get(self._keys.key_prints)], [])), 0)
        return {} if kv is None else msgspec.json.decode(kv.value, type=dict[str, str])

    def publish_key_prints(self, term: Term, prints: dict[str, str]) -> None:
        self._write(term, put(self._keys.key_prints, msgspec.json.encode(prints)))

    def health(self) -> EngineHealth:
        members = len(self._settings.endpoints)
        try:
            answers = self._connection.each(
                "/etcdserverpb.Maintenance/Status", pb.StatusRequest(), pb.StatusResponse
            )
        except EngineUnavailable:
            return EngineHealth(members=members)
        states = [status for _, status in answers]
        fullest = max(states, key=lambda status: status.dbSize)
        return EngineHealth(
            size_bytes=fullest.dbSize,
            quota_bytes=fullest.dbSizeQuota or self._settings.quota_bytes,
            is_full=any("NOSPACE" in text for status in states for text in status.errors),
            members=members,
            members_healthy=sum(status.leader != 0 for status in states),
            has_quorum=self._has_quorum(),
        )

    def wait(self, index: int, timeout_s: float) -> None:
        with self._lock:
            if self._watch is None:
                self._watch = KeyWatch(self._connection, self._keys)
        self._watch.wait(index, timeout_s)

    def resign(self, term: Term) -> None:
        with contextlib.suppress(NoLease):
            self._revoke(term.lease_id)

    def close(self) -> None:
        self._connection.close()
        with self._lock:
            if self._watch is not None:
                self._watch.close()

    def _committed(self, term: Term, before: Head, wanted: Head, record: bytes) -> Head:
        body, is_packed = pack(record)
        group = GroupValue(chain=wanted.chain, body=body, is_packed=is_packed)
        if len(body) > PART_BYTES:
            name = part_name(wanted.index, term.fence, wanted.chain)
            for number, start in enumerate(range(0, len(body), PART_BYTES)):
                answer = self._commit_txn(
                    self._under_fence(
                        term, put(self._keys.part(name, number), body[start : start + PART_BYTES])
                    )
                )
                if not answer.succeeded:
                    return self._decided(term, wanted, answer)
            group = msgspec.structs.replace(group, body=b"", parts=number + 1, part_name=name)
        value = HeadValue(index=wanted.index, epoch=wanted.epoch, chain=wanted.chain, fence=term.fence)
        request = self._under_fence(
            term, put(self._keys.group(wanted.index), encode(group)), put(self._keys.head, encode(value))
        )
        request.compare.append(modified_at(self._keys.head, before.revision))
        answer = self._commit_txn(request)
        if answer.succeeded:
            return msgspec.structs.replace(wanted, revision=answer.header.revision)
        return self._decided(term, wanted, answer)

    def _under_fence(self, term: Term, *then: pb.RequestOp) -> pb.TxnRequest:
        """If the comparison fails, leader and head are read at the same moment: they show the winner."""
        keys = self._keys
        return txn([created_at(keys.leader, term.fence)], then, [get(keys.leader), get(keys.head)])

    def _write(self, term: Term, operation: pb.RequestOp) -> None:
        answer = self._txn(self._under_fence(term, operation))
        if not answer.succeeded:
            _check_fence(term, found_in(answer, 0), _head_in(answer, 1))

    def _decided(self, term: Term, wanted: Head, answer: pb.TxnResponse) -> Head:
        head = _head_in(answer, 1)
        if _is_same(head, wanted):
            return head  # an earlier, identical call was applied
        _check_fence(term, found_in(answer, 0), head)
        raise HeadMoved(
            f"the head is at group {head.index} with revision {head.revision}, although we lead", head
        )

    def _despite_no_space(self, term: Term, before: Head, wanted: Head, *, maybe_applied: bool) -> Head:
        """The engine gives this answer also for the transaction that crossed the quota, which it has applied."""
        kv, head = self._leader_and_head()
        if _is_same(head, wanted):
            return head
        _check_fence(term, kv, head)
        if head.revision != before.revision:
            raise HeadMoved(f"the head is at group {head.index}, not at {before.index}", head)
        if maybe_applied:
            raise EngineUnavailable(f"an earlier try of group {wanted.index} may still be applied; {_FULL}")
        self._undecided = None
        raise EngineFull(_FULL)

    def _leader_and_head(self) -> tuple[pb.KeyValue | None, Head]:
        """A linearisable read of both at one moment."""
        answer = self._txn(txn([], [get(self._keys.leader), get(self._keys.head)], []))
        return found_in(answer, 0), _head_in(answer, 1)

    def _floor(self) -> tuple[FloorValue, int]:
        found = self._call(
            "/etcdserverpb.KV/Range", pb.RangeRequest(key=self._keys.floor), pb.RangeResponse
        ).kvs
        if not found:
            return FloorValue(index=1, chain=b""), 0
        return msgspec.msgpack.decode(found[0].value, type=FloorValue), found[0].mod_revision

    def _has_quorum(self) -> bool:
        """A member that was cut off knows its last leader for a while: only a linearisable read proves a majority."""
        try:
            self._leader_and_head()
        except EngineUnavailable:
            return False
        return True

    def _grant(self, lease_id: int) -> int:
        request = pb.LeaseGrantRequest(ID=lease_id, TTL=self._settings.ttl_s)
        try:
            answer = self._call("/etcdserverpb.Lease/LeaseGrant", request, pb.LeaseGrantResponse)
        except LeaseExists:
            return self._settings.ttl_s  # an earlier try of the same call was applied
        except NoSpace as error:
            raise EngineFull(_FULL) from error
        return int(answer.TTL)

    def _revoke(self, lease_id: int) -> None:
        self._call(
            "/etcdserverpb.Lease/LeaseRevoke", pb.LeaseRevokeRequest(ID=lease_id), pb.LeaseRevokeResponse
        )

    def _revoke_if_possible(self, lease_id: int) -> None:
        with contextlib.suppress(EngineError, NoLease):
            self._revoke(lease_id)

    def _txn(self, request: pb.TxnRequest) -> Any:
        try:
            return self._call("/etcdserverpb.KV/Txn", request, pb.TxnResponse)
        except NoSpace as error:
            raise EngineFull(_FULL) from error

    def _commit_txn(self, request: pb.TxnRequest) -> Any:
        """Raises NoSpace, which alone does not decide."""
        return self._call("/etcdserverpb.KV/Txn", request, pb.TxnResponse)

    def _call(self, method: str, request: Any, answer_type: Any) -> Any:
        return self._connection.call(method, request, answer_type)


def _leader_of(kv: pb.KeyValue) -> Leader:
    try:
        candidate = msgspec.json.decode(kv.value, type=Candidate)
    except msgspec.DecodeError as error:
        raise EngineRefused(
            f"the key {kv.key!r} was not written by dgpu: use another prefix ({error})"
        ) from error
    return Leader(candidate=candidate, fence=kv.create_revision)


def _head_in(answer: pb.TxnResponse, number: int) -> Head:
    kv = found_in(answer, number)
    if kv is None:
        return Head()
    try:
        return head_of(kv.value, kv.mod_revision)
    except msgspec.DecodeError as error:
        raise EngineRefused(
            f"the key {kv.key!r} was not written by dgpu: use another prefix ({error})"
        ) from error


def _is_same(head: Head, wanted: Head) -> bool:
    return (head.index, head.epoch, head.chain) == (wanted.index, wanted.epoch, wanted.chain)


def _check_fence(term: Term, kv: pb.KeyValue | None, head: Head) -> None:
    if kv is None:
        raise FenceLost(f"no scheduler leads any more; ours was fence {term.fence}", head)
    if kv.create_revision != term.fence:
        leader = _leader_of(kv)
        raise FenceLost(
            f"{leader.candidate.name} leads with fence {leader.fence}; ours was {term.fence}", head
        )
