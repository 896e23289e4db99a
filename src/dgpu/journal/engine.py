# ruff: noqa: N818 - the names describe the state of the engine
"""The interface to a consensus engine that keeps the journal of several schedulers.

One scheduler leads: it holds the leader key, whose create revision is the fence. Every commit compares the fence and
the head, so a scheduler that lost the key can store nothing more. Followers copy committed groups to their own
segments.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Iterator
from typing import Protocol

import msgspec

from dgpu.journal.errors import JournalError

PART_BYTES = 1 << 20  # the largest value of one key: etcd takes requests up to 1.5 MiB
NOT_KEPT = 1 << 62  # no group that the snapshot covers
CLOSED = (
    "closed, and goes on in the single scheduler of "  # begins the name in the leader key of a closed journal
)


class EngineError(JournalError):
    pass


class EngineUnavailable(EngineError):
    """No majority answered in time. A write may have been applied, or may still be applied."""


class FenceLost(EngineError):
    """The leader key is gone or belongs to another scheduler. Nothing that was sent under the fence will be applied any
    more, except what `head` shows.
    """

    def __init__(self, why: str, head: Head) -> None:
        super().__init__(why)
        self.head = head


class HeadMoved(FenceLost):
    """The leader key is ours, but the head is not the one we know: another program writes under the same prefix, or the
    engine was restored. The reaction is the same: discard the memory and follow again.
    """


class BelowFloor(EngineError):
    """The engine has deleted this group. The engine's snapshot must be fetched."""

    def __init__(self, index: int, floor: int) -> None:
        super().__init__(
            f"the engine has no group {index}, its first one is {floor}: its snapshot must be fetched"
        )
        self.index = index
        self.floor = floor


class SnapshotReplaced(EngineError):
    """A later snapshot took its place while it was read. Read the later one."""


class EngineFull(EngineError):
    """The engine's quota is used up. The group is certainly not stored."""


class EngineRefused(EngineError):
    """Wrong cluster, version or credentials. An operator must act; the text names the action."""


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A scheduler, as the leader key names it to clients and other schedulers."""

    name: str
    http: str  # URL for people
    grpc: str  # address for agents
    nonce: str

    @property
    def is_closed(self) -> bool:
        """`dgpu ha leave` was run: no scheduler can lead here any more. The name says where the tasks are."""
        return self.name.startswith(CLOSED)


class Leader(msgspec.Struct, frozen=True, kw_only=True):
    candidate: Candidate
    fence: int  # create revision of the leader key


class Term(msgspec.Struct, frozen=True, kw_only=True):
    """One leadership, from the campaign that won it."""

    fence: int
    lease_id: int
    ttl_ms: int
    granted_at_ms: int  # CLOCK_BOOTTIME before the lease was asked for


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """The end of the committed journal. `chain` is the running hash of all groups."""

    index: int = 0
    epoch: int = 0
    chain: bytes = b""
    revision: int = 0  # mod revision of the head key; 0: the journal is empty


class StoredSnapshot(msgspec.Struct, frozen=True, array_like=True):
    """The snapshot in the engine that covers all groups below the floor."""

    index: int
    epoch: int
    chain: bytes  # the running hash at `index`
    parts: int
    sha256: bytes  # of all parts together
    fence: int = 0  # of the leader that stored it; 0: `dgpu ha init` did


class StateDigest(msgspec.Struct, frozen=True, array_like=True):
    """The fingerprint of the leader's state after one group. A standby with another one must not lead."""

    index: int
    digest: str


class EngineHealth(msgspec.Struct, frozen=True, kw_only=True):
    """The engine as one scheduler sees it. Sizes are those of the fullest member that answered; 0: none did."""

    size_bytes: int = 0
    quota_bytes: int = 0
    is_full: bool = False  # it refuses writes until there is room again
    members: int = 0  # that this scheduler knows by address
    members_healthy: int = 0  # that answer and know a leader
    has_quorum: bool = False  # a majority answered

    @property
    def share(self) -> float:
        """How much of the quota is used. At 0.8, an operator should act."""
        return self.size_bytes / self.quota_bytes if self.quota_bytes else 0.0


def extended(chain: bytes, record: bytes) -> bytes:
    """The running hash after one more record. The chain of an empty journal is empty."""
    digest = hashlib.sha256(chain)
    digest.update(record)
    return digest.digest()


def refuse_other_cluster(found: str, ours: str, place: str) -> None:
    if ours and found != ours:
        raise EngineRefused(
            f"{place} holds the journal of cluster {found}, this scheduler belongs to cluster {ours}: use another "
            f"prefix for this cluster, or an empty state directory to join the other one"
        )


def boottime_ms() -> int:
    """Leases are measured on it: it counts on while the machine sleeps."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


class Engine(Protocol):
    """Calls block for a bounded time and may come from several threads. Each may raise EngineUnavailable or
    EngineRefused.
    """

    def identify(self, cluster_id: str) -> str:
        """The id of the cluster that the journal belongs to. An engine without one gets `cluster_id`, unless that is
        empty. Raises EngineRefused if the journal belongs to another cluster.
        """
        ...

    def head(self) -> Head:
        """A linearisable read."""
        ...

    def floor(self) -> int:
        """The first group that the engine still has. A linearisable read."""
        ...

    def leader(self) -> Leader | None:
        """A linearisable read."""
        ...

    def campaign(self, candidate: Candidate) -> Term | None:
        """Creates the leader key if there is none. None: another scheduler leads. Raises EngineFull."""
        ...

    def renew(self, term: Term) -> None:
        """Extends the lease. Success proves nothing about the majority. Raises FenceLost if the lease is gone."""
        ...

    def confirm(self, term: Term) -> None:
        """A linearisable read that shows our fence. Raises FenceLost."""
        ...

    def commit(self, term: Term, before: Head, index: int, epoch: int, record: bytes) -> Head:
        """Stores one group after `before` and returns the new head.

        After EngineUnavailable the outcome is unknown: only the same call again, with the same arguments, may follow.
        It returns the head if the first call was applied. Raises FenceLost or EngineFull.
        """
        ...

    def records(self, first_index: int, last_index: int) -> list[bytes]:
        """The groups from the first index on, as many as fit in one bounded answer: at least one if it exists.

        Raises BelowFloor.
        """
        ...

    def chain_at(self, index: int) -> bytes | None:
        """The running hash after this group, or after the last one below the floor. None: the engine lacks it."""
        ...

    def snapshot(self) -> StoredSnapshot | None:
        """None: the engine has every group since the first one."""
        ...

    def snapshot_parts(self, stored: StoredSnapshot) -> Iterator[bytes]:
        """Raises SnapshotReplaced."""
        ...

    def store_snapshot(
        self, term: Term, index: int, epoch: int, parts: Iterable[bytes], *, kept_from: int = NOT_KEPT
    ) -> None:
        """Stores a snapshot of the state after group `index`, in parts of at most 1 MiB, and moves the floor behind it,
        or to `kept_from` if that is lower.

        Both take effect together, after the last part. Nothing is deleted yet. A snapshot that is not later than the
        stored one is ignored.
        Raises FenceLost, EngineFull; after EngineUnavailable, a later snapshot may be stored. An error that `parts`
        raises leaves everything as it was.
        """
        ...

    def delete_covered(self, term: Term) -> None:
        """Deletes groups below the floor, and parts that nothing names. Raises FenceLost; may be called again."""
        ...

    def digest(self) -> StateDigest | None:
        """The last one that a leader published."""
        ...

    def publish_digest(self, term: Term, digest: StateDigest) -> None:
        """Raises FenceLost, EngineFull."""
        ...

    def key_prints(self) -> dict[str, str]:
        """Fingerprints of the key files that all schedulers need, by name, as a leader published them."""
        ...

    def publish_key_prints(self, term: Term, prints: dict[str, str]) -> None:
        """Raises FenceLost, EngineFull."""
        ...

    def health(self) -> EngineHealth:
        """Answers also while no member does. Raises only EngineRefused."""
        ...

    def wait(self, index: int, timeout_s: float) -> None:
        """Returns when the head may have passed `index`, when the leader may have changed, or after the timeout.

        A hint: it proves nothing.
        """
        ...

    def resign(self, term: Term) -> None:
        """Gives the leadership up at once, for a planned hand-over."""
        ...

    def close(self) -> None: ...
