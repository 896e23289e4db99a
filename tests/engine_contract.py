"""The promises of every engine, as tests. A subclass gives the fixture `connect`, which makes another connection to
the same, empty engine.
"""

from __future__ import annotations

import hashlib
import random
import threading
from collections.abc import Iterator

import pytest

from dgpu.journal.engine import (
    BelowFloor,
    Candidate,
    Engine,
    EngineRefused,
    FenceLost,
    Head,
    HeadMoved,
    SnapshotReplaced,
    StateDigest,
    Term,
    extended,
)
from dgpu.journal.format import encode_record


def candidate(name: str) -> Candidate:
    return Candidate(name=name, http=f"https://{name}", grpc=f"{name}:7070", nonce=f"nonce of {name}")


def record_of(index: int, *, epoch: int = 1, payload: bytes = b"payload") -> bytes:
    return encode_record(schema=2, epoch=epoch, index=index, payload=payload)


def elected(engine: Engine, name: str = "a") -> Term:
    term = engine.campaign(candidate(name))
    assert term is not None
    return term


def commit(engine: Engine, term: Term, head: Head, *, epoch: int = 1, payload: bytes = b"payload") -> Head:
    index = head.index + 1
    return engine.commit(term, head, index, epoch, record_of(index, epoch=epoch, payload=payload))


def committed(engine: Engine, term: Term, groups: int) -> Head:
    head = engine.head()
    for _ in range(groups):
        head = commit(engine, term, head)
    return head


class EngineContract:
    def test_an_empty_engine(self, connect) -> None:
        engine = connect()
        assert engine.head() == Head()
        assert engine.floor() == 1
        assert engine.leader() is None
        assert engine.records(1, 10) == []
        assert engine.chain_at(0) == b""
        assert engine.chain_at(1) is None

    def test_another_cluster_is_refused_by_name(self, connect) -> None:
        assert connect().identify("") == ""
        assert connect().identify("cluster-1") == "cluster-1"
        assert connect().identify("") == "cluster-1"
        with pytest.raises(
            EngineRefused, match=r"journal of cluster cluster-1, .* belongs to cluster cluster-2"
        ):
            connect().identify("cluster-2")

    def test_one_scheduler_leads(self, connect) -> None:
        first, second = connect(), connect()
        term = elected(first, "a")
        assert second.campaign(candidate("b")) is None
        leader = second.leader()
        assert leader is not None
        assert leader.candidate == candidate("a")
        assert leader.fence == term.fence
        first.confirm(term)
        first.renew(term)

    def test_commits_extend_head_and_chain(self, connect) -> None:
        engine = connect()
        term = elected(engine)
        head = committed(engine, term, 3)
        assert connect().head() == head
        records = [record_of(index) for index in (1, 2, 3)]
        assert connect().records(1, 3) == records
        assert connect().records(2, 2) == records[1:2]
        assert connect().records(3, 9) == records[2:]
        chain = b""
        for record in records:
            chain = extended(chain, record)
        assert head.chain == chain
        assert engine.chain_at(3) == chain
        assert (head.index, head.epoch) == (3, 1)

    def test_an_identical_commit_is_stored_once(self, connect) -> None:
        """After a lost answer, the same call finds out that it was applied."""
        engine = connect()
        term = elected(engine)
        before = committed(engine, term, 1)
        head = commit(engine, term, before)
        assert commit(engine, term, before) == head
        assert connect().commit(term, before, 2, 1, record_of(2)) == head
        assert engine.head() == head

    def test_a_commit_that_was_applied_counts_although_the_fence_is_lost(self, connect) -> None:
        engine = connect()
        term = elected(engine)
        head = commit(engine, term, Head())
        engine.resign(term)
        assert commit(engine, term, Head()) == head
        with pytest.raises(FenceLost):
            commit(engine, term, head)

    def test_nothing_is_stored_without_the_leader_key(self, connect) -> None:
        old, new = connect(), connect()
        term = elected(old, "a")
        head = committed(old, term, 2)
        old.resign(term)
        with pytest.raises(FenceLost) as lost:
            commit(old, term, head, payload=b"late")
        assert lost.value.head == head
        other = elected(new, "b")
        assert other.fence > term.fence
        assert other.lease_id != term.lease_id
        head = commit(new, other, head, epoch=2)
        with pytest.raises(FenceLost) as lost:
            commit(old, term, head, payload=b"late")
        assert "b leads" in str(lost.value)
        assert lost.value.head == head
        for call in (old.confirm, old.renew):
            with pytest.raises(FenceLost):
                call(term)
        assert new.head() == head

    def test_a_leader_with_an_old_head_stores_nothing(self, connect) -> None:
        """The next index is free after a deletion, so only the head guards against a fork."""
        engine = connect()
        term = elected(engine)
        before = committed(engine, term, 2)
        head = committed(engine, term, 2)
        with pytest.raises(HeadMoved):
            commit(engine, term, before, payload=b"other")
        with pytest.raises(HeadMoved):
            commit(engine, term, Head(), payload=b"other")
        assert engine.head() == head

    def test_groups_below_the_floor_are_gone(self, connect) -> None:
        engine = connect()
        term = elected(engine)
        head = committed(engine, term, 5)
        chain = engine.chain_at(3)
        engine.store_snapshot(term, 3, 1, [b"first ", b"second"])
        engine.delete_covered(term)
        engine.delete_covered(term)
        engine.store_snapshot(term, 2, 1, [b"older"])
        other = connect()
        assert other.floor() == 4
        assert other.records(4, 5) == [record_of(4), record_of(5)]
        assert other.chain_at(3) == chain
        assert other.chain_at(2) is None
        with pytest.raises(BelowFloor) as below:
            other.records(3, 5)
        assert (below.value.index, below.value.floor) == (3, 4)
        assert commit(engine, term, head).index == 6

    def test_some_of_the_covered_groups_may_stay(self, connect) -> None:
        engine = connect()
        term = elected(engine)
        committed(engine, term, 5)
        chains = [engine.chain_at(index) for index in range(6)]
        engine.store_snapshot(term, 2, 1, [b"first"], kept_from=1)
        engine.delete_covered(term)
        assert (engine.floor(), engine.snapshot().index) == (1, 2)
        engine.store_snapshot(term, 4, 1, [b"second"], kept_from=3)
        engine.store_snapshot(term, 3, 1, [b"older"], kept_from=3)
        engine.delete_covered(term)
        other = connect()
        assert (other.floor(), other.snapshot().index) == (3, 4)
        assert [other.chain_at(index) for index in range(2, 6)] == chains[2:]
        assert other.records(3, 5) == [record_of(3), record_of(4), record_of(5)]
        with pytest.raises(BelowFloor):
            other.records(2, 5)
        engine.store_snapshot(term, 5, 1, [b"third"], kept_from=1)
        assert engine.floor() == 3, "groups that may be gone do not come back"

    def test_everything_may_be_deleted(self, connect) -> None:
        engine = connect()
        term = elected(engine)
        head = committed(engine, term, 2)
        with pytest.raises(ValueError, match="not committed"):
            engine.store_snapshot(term, 3, 1, [b"later"])
        engine.store_snapshot(term, 2, 1, [b"state"])
        engine.delete_covered(term)
        assert engine.records(3, 9) == []
        assert engine.chain_at(2) == head.chain
        assert engine.head() == head
        commit(engine, term, head)
        assert engine.records(3, 9) == [record_of(3)]

    def test_only_the_leader_deletes(self, connect) -> None:
        engine = connect()
        term = elected(engine)
        committed(engine, term, 3)
        engine.resign(term)
        with pytest.raises(FenceLost):
            engine.store_snapshot(term, 2, 1, [b"state"])
        assert (engine.floor(), engine.snapshot()) == (1, None)
        other = elected(engine, "b")
        engine.store_snapshot(other, 2, 1, [b"state"])
        with pytest.raises(FenceLost):
            engine.delete_covered(term)

    def test_a_snapshot_replaces_the_groups_that_it_covers(self, connect) -> None:
        engine = connect()
        term = elected(engine)
        assert engine.snapshot() is None
        committed(engine, term, 5)
        parts = [b"a" * 1_000_000, b"b" * 1_000_000, b"c"]
        engine.store_snapshot(term, 3, 1, parts)
        other = connect()
        stored = other.snapshot()
        assert (stored.index, stored.epoch, stored.chain) == (3, 1, engine.chain_at(3))
        assert stored.sha256 == hashlib.sha256(b"".join(parts)).digest()
        assert list(other.snapshot_parts(stored)) == parts
        engine.delete_covered(term)
        assert list(other.snapshot_parts(other.snapshot())) == parts

    def test_a_reader_notices_that_a_snapshot_was_replaced(self, connect) -> None:
        engine = connect()
        term = elected(engine)
        committed(engine, term, 5)
        engine.store_snapshot(term, 3, 1, [b"first", b"second"])
        stored = connect().snapshot()
        engine.store_snapshot(term, 5, 1, [b"later"])
        engine.delete_covered(term)
        with pytest.raises(SnapshotReplaced):
            list(connect().snapshot_parts(stored))
        assert list(connect().snapshot_parts(connect().snapshot())) == [b"later"]

    def test_an_error_while_a_snapshot_is_read_moves_no_floor(self, connect) -> None:
        """A damaged local snapshot is noticed at its end. The groups must stay."""

        def parts() -> Iterator[bytes]:
            yield b"first"
            raise OSError("the disk failed")

        engine = connect()
        term = elected(engine)
        committed(engine, term, 3)
        with pytest.raises(OSError, match="the disk failed"):
            engine.store_snapshot(term, 2, 1, parts())
        engine.delete_covered(term)
        assert (engine.floor(), engine.snapshot()) == (1, None)
        assert len(engine.records(1, 3)) == 3

    def test_a_long_read_comes_in_bounded_answers(self, connect) -> None:
        engine = connect()
        term = elected(engine)
        head = Head()
        payloads = [random.Random(number).randbytes(700_000) for number in range(40)]
        for payload in payloads:
            head = commit(engine, term, head, payload=payload)
        found: list[bytes] = []
        answers = 0
        while len(found) < head.index:
            answer = engine.records(len(found) + 1, head.index)
            assert answer
            found += answer
            answers += 1
        assert found == [record_of(index, payload=payload) for index, payload in enumerate(payloads, 1)]
        assert answers > 1

    def test_a_wait_ends_with_the_next_commit(self, connect) -> None:
        leader, follower = connect(), connect()
        term = elected(leader)
        head = committed(leader, term, 1)
        follower.wait(0, 60)
        waiting = threading.Thread(target=follower.wait, args=(1, 60))
        waiting.start()
        commit(leader, term, head)
        waiting.join(50)
        assert not waiting.is_alive()

    def test_a_wait_ends_when_the_leader_resigns(self, connect) -> None:
        """A planned hand-over must not wait for a lease."""
        leader, follower = connect(), connect()
        term = elected(leader)
        follower.wait(0, 0.01)
        waiting = threading.Thread(target=follower.wait, args=(0, 60))
        waiting.start()
        waiting.join(0.3)  # most often it waits by now; the test is right in any case
        leader.resign(term)
        waiting.join(50)
        assert not waiting.is_alive()

    def test_the_leader_publishes_a_digest(self, connect) -> None:
        engine = connect()
        assert engine.digest() is None
        term = elected(engine)
        engine.publish_digest(term, StateDigest(10, "abc"))
        assert connect().digest() == StateDigest(10, "abc")
        engine.resign(term)
        with pytest.raises(FenceLost):
            engine.publish_digest(term, StateDigest(20, "late"))
        assert engine.digest() == StateDigest(10, "abc")

    def test_the_leader_publishes_fingerprints_of_keys(self, connect) -> None:
        engine = connect()
        assert engine.key_prints() == {}
        term = elected(engine)
        engine.publish_key_prints(term, {"token.key": "ab"})
        assert connect().key_prints() == {"token.key": "ab"}
        engine.resign(term)
        with pytest.raises(FenceLost):
            engine.publish_key_prints(term, {"token.key": "late"})
        assert engine.key_prints() == {"token.key": "ab"}

    def test_health(self, connect) -> None:
        engine = connect()
        committed(engine, elected(engine), 1)
        health = engine.health()
        assert 0 < health.size_bytes < health.quota_bytes
        assert 0 < health.share < 1
        assert not health.is_full
        assert health.has_quorum
        assert health.members == health.members_healthy > 0
