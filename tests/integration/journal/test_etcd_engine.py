"""The engine on a real etcd: the promises of every engine, lost answers, parts, leases, a full quota."""

from __future__ import annotations

import base64
import random
from collections.abc import Iterator

import pytest

from dgpu.journal.engine import PART_BYTES, EngineFull, EngineUnavailable, FenceLost, Head
from dgpu.journal.etcd.connection import NoSpace
from dgpu.journal.etcd.engine import EtcdEngine
from engine_contract import EngineContract, candidate, commit, committed, elected, record_of
from etcd_cluster import EtcdCluster, LossyProxy, wait_until

BIG = random.Random(1).randbytes(3 * PART_BYTES) + b"end"  # cannot be packed
_IMPATIENT = {"patience_s": 0.6, "attempt_s": 0.3}


class TestContract(EngineContract):
    pass


@pytest.fixture
def proxy(etcd):
    proxy = LossyProxy(etcd.members[0].client_port)
    yield proxy
    proxy.close()


@pytest.mark.parametrize("payload", [b"small", BIG], ids=["small", "in parts"])
def test_a_commit_whose_answer_is_lost_counts_once(connect, proxy, payload) -> None:
    """The next call with the same arguments shows that the first one was applied."""
    engine = connect(endpoints=(proxy.url,), **_IMPATIENT)
    wait_until(lambda: _is_reachable(engine), "the proxy forwards nothing")
    patient = connect()
    term = elected(patient)
    before = committed(patient, term, 1)
    proxy.loses_answers = True
    with pytest.raises(EngineUnavailable):
        commit(engine, term, before, payload=payload)
    if payload == b"small":
        wait_until(lambda: patient.head().index == 2, "the request did not arrive")
    proxy.heal()
    head = commit(patient, term, before, payload=payload)
    assert head.index == 2
    assert patient.records(2, 9) == [record_of(2, payload=payload)]
    assert commit(patient, term, head).index == 3


def test_a_commit_to_a_stopped_engine_is_decided_when_it_continues(connect, etcd) -> None:
    engine, patient = connect(**_IMPATIENT), connect()
    term = elected(patient)
    before = committed(patient, term, 1)
    etcd.pause()
    try:
        with pytest.raises(EngineUnavailable):
            commit(engine, term, before, payload=b"late")
        with pytest.raises(EngineUnavailable):
            engine.head()
    finally:
        etcd.resume()
    head = commit(patient, term, before, payload=b"late")
    assert patient.head() == head
    assert patient.records(1, 9) == [record_of(1), record_of(2, payload=b"late")]


def test_a_large_group_is_stored_in_parts(connect, etcd) -> None:
    engine = connect()
    term = elected(engine)
    head = commit(engine, term, Head(), payload=BIG)
    head = commit(engine, term, head)
    assert connect().records(1, 9) == [record_of(1, payload=BIG), record_of(2)]
    assert len(_keys(etcd, engine, "part/")) == 4
    assert connect().chain_at(2) == head.chain
    engine.store_snapshot(term, 1, 1, [b"state"])
    engine.delete_covered(term)
    assert _keys(etcd, engine, "part/") == []
    assert connect().records(2, 9) == [record_of(2)]


def test_a_large_group_is_packed(connect, etcd) -> None:
    engine = connect()
    payload = b"python train.py --seed 1 " * 200_000
    commit(engine, elected(engine), Head(), payload=payload)
    assert _keys(etcd, engine, "part/") == []
    assert connect().records(1, 1) == [record_of(1, payload=payload)]


def test_parts_of_a_leader_that_died_are_deleted(connect, etcd, monkeypatch) -> None:
    """It had sent the parts, but not the head."""
    dying, next_one = connect(), connect()
    term = elected(dying)
    before = commit(dying, term, Head(), payload=BIG)
    sent = []

    def dies_before_the_head(request):
        if len(request.compare) > 1:
            raise EngineUnavailable("killed")
        sent.append(request)
        return EtcdEngine._commit_txn(dying, request)

    monkeypatch.setattr(dying, "_commit_txn", dies_before_the_head)
    with pytest.raises(EngineUnavailable):
        commit(dying, term, before, payload=BIG + b"other")
    assert len(_keys(etcd, dying, "part/")) == 8
    dying.resign(term)
    with pytest.raises(FenceLost):
        commit(dying, term, before, payload=BIG + b"late")
    assert len(_keys(etcd, dying, "part/")) == 8
    other = elected(next_one, "b")
    head = commit(next_one, other, before, epoch=2, payload=BIG + b"new")
    next_one.delete_covered(other)
    assert len(_keys(etcd, dying, "part/")) == 8  # four of each group that was committed
    assert next_one.records(2, 2) == [record_of(2, epoch=2, payload=BIG + b"new")]
    assert next_one.head() == head


def test_only_keys_under_the_prefix_are_deleted(connect, etcd) -> None:
    engine = connect()
    foreign = base64.b64encode(b"test/foreign").decode()
    etcd.api("/v3/kv/put", {"key": foreign, "value": foreign})
    term = elected(engine)
    committed(engine, term, 3)
    engine.store_snapshot(term, 3, 1, [b"state"])
    engine.delete_covered(term)
    assert _keys(etcd, engine, "group/") == []
    assert etcd.api("/v3/kv/range", {"key": foreign})["count"] == "1"


def test_an_interrupted_deletion_is_completed(connect, etcd, monkeypatch) -> None:
    engine = connect()
    term = elected(engine)
    committed(engine, term, 3)
    engine.store_snapshot(term, 2, 1, [b"state"])

    def fails(*_args, **_kwargs):
        raise EngineUnavailable("no answer")

    with monkeypatch.context() as patch:
        patch.setattr("dgpu.journal.etcd.engine.delete_groups", fails)
        with pytest.raises(EngineUnavailable):
            engine.delete_covered(term)
    assert engine.floor() == 3
    assert len(_keys(etcd, engine, "group/")) == 3
    engine.delete_covered(term)
    assert len(_keys(etcd, engine, "group/")) == 1


def test_parts_of_a_snapshot_that_was_not_completed_are_deleted(connect, etcd) -> None:
    """A leader that died while it stored a snapshot leaves parts that nothing names."""

    def dies() -> Iterator[bytes]:
        yield b"first"
        raise OSError("killed")

    engine = connect()
    term = elected(engine)
    committed(engine, term, 4)
    engine.store_snapshot(term, 2, 1, [b"one", b"two"])
    with pytest.raises(OSError, match="killed"):
        engine.store_snapshot(term, 3, 1, dies())
    assert len(_keys(etcd, engine, "snapshot/")) == 3
    engine.delete_covered(term)
    assert len(_keys(etcd, engine, "snapshot/")) == 2
    engine.store_snapshot(term, 4, 1, [b"three"])
    engine.delete_covered(term)
    assert len(_keys(etcd, engine, "snapshot/")) == 1
    committed(engine, term, 1)
    with pytest.raises(ValueError, match="at most 1048576"):
        engine.store_snapshot(term, 5, 1, [b"x" * 1_048_577])


def test_a_lease_ends_when_it_is_not_renewed(connect) -> None:
    engine = connect(ttl_s=1)
    term = elected(engine)
    head = committed(engine, term, 1)
    engine.renew(term)
    wait_until(lambda: engine.leader() is None, "the lease does not end")
    for call in (engine.renew, engine.confirm):
        with pytest.raises(FenceLost) as lost:
            call(term)
        assert lost.value.head == head
    with pytest.raises(FenceLost):
        commit(engine, term, head)
    assert connect().campaign(candidate("b")) is not None


def test_an_election_whose_answer_is_lost_leaves_no_leader_behind(connect, proxy) -> None:
    engine = connect(endpoints=(proxy.url,), **_IMPATIENT)
    wait_until(lambda: _is_reachable(engine), "the proxy forwards nothing")
    proxy.loses_answers = True
    with pytest.raises(EngineUnavailable):
        engine.campaign(candidate("a"))
    proxy.heal()
    assert elected(connect(), "b").fence


def test_an_election_that_is_applied_late_leaves_no_leader_behind(connect, monkeypatch) -> None:
    """The key would stay for a whole lease, although nobody leads."""
    engine = connect()

    def applied_unseen(request):
        EtcdEngine._txn(engine, request)
        if request.success[0].WhichOneof("request") == "request_put":
            raise EngineUnavailable("no answer")
        return EtcdEngine._txn(engine, request)

    with monkeypatch.context() as patch:
        patch.setattr(engine, "_txn", applied_unseen)
        with pytest.raises(EngineUnavailable):
            engine.campaign(candidate("a"))
    assert engine.leader() is None


def test_the_group_that_crosses_the_quota_is_committed(connect, monkeypatch) -> None:
    """A member that applies it answers "no space" nevertheless."""
    engine = connect()
    term = elected(engine)

    def crosses(request):
        EtcdEngine._commit_txn(engine, request)
        raise NoSpace(maybe_applied=False)

    monkeypatch.setattr(engine, "_commit_txn", crosses)
    head = commit(engine, term, Head())
    assert head == connect().head()
    assert head.index == 1


def test_no_space_after_an_unknown_outcome_decides_nothing(connect, monkeypatch) -> None:
    """The first try may still be applied, so the group must not be reported as not stored."""
    engine = connect()
    term = elected(engine)
    answers = [EngineUnavailable("late"), NoSpace(maybe_applied=False), NoSpace(maybe_applied=False)]

    def fails(request):
        if answers:
            raise answers.pop(0)
        return EtcdEngine._commit_txn(engine, request)

    monkeypatch.setattr(engine, "_commit_txn", fails)
    for _ in range(3):
        with pytest.raises(EngineUnavailable):
            commit(engine, term, Head())
    head = commit(engine, term, Head())
    answers.append(NoSpace(maybe_applied=True))
    with pytest.raises(EngineUnavailable):
        commit(engine, term, head)
    head = commit(engine, term, head)
    answers.append(NoSpace(maybe_applied=False))
    with pytest.raises(EngineFull):
        commit(engine, term, head)
    assert engine.head() == head


def test_a_full_quota_refuses_groups_and_loses_none(tmp_path) -> None:
    """The transaction that crosses the quota is answered with "no space", but it is applied."""
    with EtcdCluster(tmp_path / "etcd", flags=(f"--quota-backend-bytes={8 << 20}",)) as cluster:
        engine = EtcdEngine(cluster.settings(patience_s=30.0, attempt_s=10.0, quota_bytes=8 << 20, ttl_s=120))
        term = elected(engine)
        head = Head()
        payload = random.Random(2).randbytes(500_000)
        with pytest.raises(EngineFull, match="disarm"):
            for _ in range(100):
                engine.renew(term)
                head = commit(engine, term, head, payload=payload)
        assert engine.head() == head
        assert engine.health().is_full
        assert engine.health().share > 0.8
        engine.confirm(term)
        engine.renew(term)
        assert engine.records(head.index, head.index + 1) == [record_of(head.index, payload=payload)]
        engine.close()


def _is_reachable(engine: EtcdEngine) -> bool:
    try:
        engine.head()
    except EngineUnavailable:
        return False
    return True


def _keys(etcd, engine: EtcdEngine, kind: str) -> list[str]:
    prefix = engine._settings.prefix + kind
    start, end = (base64.b64encode(one.encode()).decode() for one in (prefix, prefix[:-1] + "0"))
    found = etcd.api("/v3/kv/range", {"key": start, "range_end": end, "keys_only": True})
    return [kv["key"] for kv in found.get("kvs", [])]
