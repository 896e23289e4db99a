"""The keys of an engine as one value: every call is atomic and happens at the time that the caller gives.

The engine in memory and the simulated engine share it, so both decide like etcd's transactions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from dgpu.journal.engine import (
    NOT_KEPT,
    BelowFloor,
    Candidate,
    EngineFull,
    FenceLost,
    Head,
    HeadMoved,
    Leader,
    SnapshotReplaced,
    StateDigest,
    StoredSnapshot,
    Term,
    extended,
    refuse_other_cluster,
)

TTL_MS = 5_000
_MAX_ANSWER_BYTES = 8 << 20


class EngineState:
    def __init__(self, *, ttl_ms: int = TTL_MS) -> None:
        self.head = Head()
        self.floor = 1
        self.is_full = False
        self.cluster_id = ""
        self.snapshot: StoredSnapshot | None = None
        self.digest: StateDigest | None = None
        self.key_prints: dict[str, str] = {}
        self._snapshot_parts: tuple[bytes, ...] = ()
        self._ttl_ms = ttl_ms
        self._revision = 1  # of an empty engine, as in etcd
        self._leader: Leader | None = None
        self._lease_id = 0  # of the leader key
        self._leases: dict[int, int] = {}  # the time at which each one ends
        self._granted = 0
        self._records: dict[int, bytes] = {}
        self._chains: dict[int, bytes] = {0: b""}

    def identify(self, cluster_id: str) -> str:
        self.cluster_id = self.cluster_id or cluster_id
        refuse_other_cluster(self.cluster_id, cluster_id, "the engine")
        return self.cluster_id

    def leader(self, now_ms: int) -> Leader | None:
        self._expire(now_ms)
        return self._leader

    def campaign(self, candidate: Candidate, now_ms: int, *, granted_at_ms: int) -> Term | None:
        self._expire(now_ms)
        if self._leader is not None:
            return None
        self._granted += 1  # an id is never used twice
        self._lease_id = self._granted
        self._leases[self._lease_id] = now_ms + self._ttl_ms
        self._revision += 1
        self._leader = Leader(candidate=candidate, fence=self._revision)
        return Term(
            fence=self._revision, lease_id=self._lease_id, ttl_ms=self._ttl_ms, granted_at_ms=granted_at_ms
        )

    def renew(self, term: Term, now_ms: int) -> None:
        self._expire(now_ms)
        if term.lease_id not in self._leases:
            raise FenceLost(f"lease {term.lease_id} has ended", self.head)
        self._leases[term.lease_id] = now_ms + self._ttl_ms

    def confirm(self, term: Term, now_ms: int) -> None:
        self._expire(now_ms)
        if self._leader is None or self._leader.fence != term.fence:
            raise FenceLost(_why_lost(term, self._leader), self.head)

    def commit(self, term: Term, before: Head, index: int, epoch: int, record: bytes, now_ms: int) -> Head:
        self._expire(now_ms)
        chain = extended(before.chain, record)
        if (self.head.index, self.head.epoch, self.head.chain) == (index, epoch, chain):
            return self.head  # an earlier, identical call was applied
        self.confirm(term, now_ms)
        if self.head.revision != before.revision:
            raise HeadMoved(f"the head is at group {self.head.index}, not at {before.index}", self.head)
        if self.is_full:
            raise EngineFull("the engine's quota is used up")
        self._revision += 1
        self._records[index], self._chains[index] = record, chain
        self.head = Head(index=index, epoch=epoch, chain=chain, revision=self._revision)
        return self.head

    def records(self, first_index: int, last_index: int) -> list[bytes]:
        if first_index < self.floor:
            raise BelowFloor(first_index, self.floor)
        found: list[bytes] = []
        size = 0
        for index in range(first_index, min(last_index, self.head.index) + 1):
            record = self._records[index]
            if found and size + len(record) > _MAX_ANSWER_BYTES:
                break
            found.append(record)
            size += len(record)
        return found

    def chain_at(self, index: int) -> bytes | None:
        return self._chains.get(index)

    def store_snapshot(
        self,
        term: Term,
        index: int,
        epoch: int,
        parts: Sequence[bytes],
        now_ms: int,
        kept_from: int = NOT_KEPT,
    ) -> None:
        self.confirm(term, now_ms)
        if index > self.head.index:
            raise ValueError(f"group {index} is not committed: the head is at {self.head.index}")
        if self.snapshot is not None and index <= self.snapshot.index:
            return
        if self.is_full:
            raise EngineFull("the engine's quota is used up")
        self.snapshot = StoredSnapshot(
            index=index,
            epoch=epoch,
            chain=self._chains[index],
            parts=len(parts),
            sha256=hashlib.sha256(b"".join(parts)).digest(),
            fence=term.fence,
        )
        self._snapshot_parts = tuple(parts)
        self.floor = max(self.floor, min(index + 1, kept_from))

    def snapshot_parts(self, stored: StoredSnapshot) -> tuple[bytes, ...]:
        if stored != self.snapshot:
            raise SnapshotReplaced(f"the snapshot of group {stored.index} was replaced")
        return self._snapshot_parts

    def delete_covered(self, term: Term, now_ms: int) -> None:
        self.confirm(term, now_ms)
        for gone in [index for index in self._records if index < self.floor]:
            del self._records[gone]
        for gone in [index for index in self._chains if index < self.floor - 1]:
            del self._chains[gone]

    def publish_digest(self, term: Term, digest: StateDigest, now_ms: int) -> None:
        self.confirm(term, now_ms)
        if self.is_full:
            raise EngineFull("the engine's quota is used up")
        self.digest = digest

    def publish_key_prints(self, term: Term, prints: dict[str, str], now_ms: int) -> None:
        self.confirm(term, now_ms)
        if self.is_full:
            raise EngineFull("the engine's quota is used up")
        self.key_prints = dict(prints)

    def revoke(self, lease_id: int) -> None:
        """By its owner, by an operator, or too early by an old version of the engine."""
        self._leases.pop(lease_id, None)
        if self._lease_id == lease_id:
            self._leader = None

    def revoke_leader(self) -> None:
        self.revoke(self._lease_id)

    def extend_leases(self, now_ms: int) -> None:
        """After an election among the members: no lease ended meanwhile."""
        self._leases = dict.fromkeys(self._leases, now_ms + self._ttl_ms)

    @property
    def stored_bytes(self) -> int:
        return sum(map(len, self._records.values())) + sum(map(len, self._snapshot_parts))

    def _expire(self, now_ms: int) -> None:
        for lease_id, ends_at in list(self._leases.items()):
            if ends_at <= now_ms:
                self.revoke(lease_id)


def _why_lost(term: Term, leader: Leader | None) -> str:
    if leader is None:
        return f"no scheduler leads any more; ours was fence {term.fence}"
    return f"{leader.candidate.name} leads with fence {leader.fence}; ours was {term.fence}"
