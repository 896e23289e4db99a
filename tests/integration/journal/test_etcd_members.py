"""Members that die, certificates, users, and clusters that are refused by name."""

from __future__ import annotations

from concurrent import futures

import grpc
import pytest

from certificates import make_certificates
from dgpu.journal.engine import EngineRefused, EngineUnavailable, Head
from dgpu.journal.etcd.engine import EtcdEngine
from dgpu.journal.etcd.settings import EtcdSettings
from dgpu.wire.proto import etcd_pb2 as pb
from engine_contract import commit, committed, elected, record_of
from etcd_cluster import EtcdCluster

PATIENT = {"patience_s": 60.0, "attempt_s": 2.0, "ttl_s": 120}


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    with EtcdCluster(tmp_path_factory.mktemp("three"), members=3) as cluster:
        yield cluster


@pytest.fixture
def engine(three, request):
    engine = EtcdEngine(three.settings(prefix=f"test/{request.node.name}/", **PATIENT))
    yield engine
    engine.close()


def test_commits_go_on_when_any_one_member_is_killed(three, engine) -> None:
    term = elected(engine)
    head = committed(engine, term, 1)
    for number in range(3):
        three.kill(number)
        for _ in range(3):
            head = commit(engine, term, head)
        three.start(number)
        three.wait_healthy()
    assert engine.head() == head
    assert engine.records(1, 99) == [record_of(index) for index in range(1, 11)]


def test_commits_go_on_when_the_leading_member_stops(three, engine) -> None:
    """A stopped member keeps its connections open: only the deadline tells."""
    term = elected(engine)
    head = committed(engine, term, 1)
    leading = three.leader()
    three.pause(leading)
    try:
        head = committed(engine, term, 3)
    finally:
        three.resume(leading)
    three.wait_healthy()
    assert engine.head() == head


def test_without_a_majority_nothing_is_answered_and_nothing_is_lost(three, engine) -> None:
    term = elected(engine)
    before = committed(engine, term, 2)
    impatient = EtcdEngine(three.settings(prefix=engine._settings.prefix, patience_s=1.0, attempt_s=0.4))
    three.kill(1, 2)
    with pytest.raises(EngineUnavailable):
        commit(impatient, term, before, payload=b"stalled")
    with pytest.raises(EngineUnavailable):
        impatient.confirm(term)
    health = impatient.health()
    assert (health.members, health.has_quorum) == (3, False)
    assert health.members_healthy <= 1
    impatient.close()
    for number in (1, 2):
        three.start(number)
    head = commit(engine, term, before, payload=b"stalled")
    assert engine.records(3, 9) == [record_of(3, payload=b"stalled")]
    assert engine.head() == head


def test_everything_committed_survives_the_death_of_all_members(three, engine) -> None:
    term = elected(engine)
    head = committed(engine, term, 5)
    three.kill()
    for number in range(3):
        three.start(number)
    assert engine.head() == head
    engine.confirm(term)
    assert commit(engine, term, head).index == 6


def test_a_follower_is_woken_although_its_member_died(three, engine) -> None:
    follower = EtcdEngine(three.settings(prefix=engine._settings.prefix, **PATIENT))
    term = elected(engine)
    head = committed(engine, term, 1)
    follower.wait(0, 60)
    three.kill(0)
    try:
        head = commit(engine, term, head)
        follower.wait(1, 60)
        assert follower.head() == head
    finally:
        three.start(0)
        follower.close()
    three.wait_healthy()


def test_certificates_and_a_password(tmp_path) -> None:
    files = make_certificates(tmp_path / "pki")
    with EtcdCluster(tmp_path / "etcd", tls=files) as cluster:
        cluster.add_user("dgpu", "correct horse")
        settings = cluster.settings(user="dgpu", password="correct horse", **PATIENT)
        assert "horse" not in repr(settings)
        engine = EtcdEngine(settings)
        assert engine.identify("one") == "one"
        term = elected(engine)
        head = committed(engine, term, 2)
        engine.renew(term)
        engine.wait(0, 60)
        engine._connection._token = "expired.1"  # as after a restart of the member
        head = commit(engine, term, head)
        assert engine.head() == head
        engine.close()
        check_refused(cluster.settings(user="dgpu", password="wrong", **PATIENT), "does not accept the user")
        check_refused(cluster.settings(**PATIENT), "the user needs read and write access")
        check_refused(
            cluster.settings(user="dgpu", password="correct horse", prefix="other/", **PATIENT),
            "the user needs read and write access",
        )
        other = make_certificates(tmp_path / "other")
        stranger = cluster.settings(ca_file=str(other["ca"]), patience_s=1.0, attempt_s=0.5)
        engine = EtcdEngine(stranger)
        with pytest.raises(EngineRefused, match="is not of the authority"):
            engine.head()
        engine.close()


def test_a_missing_user_is_refused_by_name(tmp_path) -> None:
    with EtcdCluster(tmp_path / "etcd") as cluster:
        cluster.add_user("dgpu", "correct horse")
        check_refused(cluster.settings(**PATIENT), "has users: give a user and a password")


def test_two_etcd_clusters_arerefused(tmp_path, three) -> None:
    """Members of two clusters in one list would give two journals."""
    with EtcdCluster(tmp_path / "other") as other:
        settings = three.settings(endpoints=(three.endpoints[0], other.endpoints[0]), **PATIENT)
        engine = EtcdEngine(settings)
        assert engine.head() == Head()
        engine._connection.turn()
        with pytest.raises(EngineRefused, match="belongs to etcd cluster"):
            engine.head()
        engine.close()


@pytest.mark.parametrize("version", ["3.4.22", "3.5.1"])
def test_a_version_that_loses_data_isrefused(version) -> None:
    def status(_request, _context):
        return pb.StatusResponse(version=version, header=pb.ResponseHeader(cluster_id=1))

    server = grpc.server(futures.ThreadPoolExecutor(1))
    method = grpc.unary_unary_rpc_method_handler(
        status,
        request_deserializer=pb.StatusRequest.FromString,
        response_serializer=pb.StatusResponse.SerializeToString,
    )
    handlers = grpc.method_handlers_generic_handler("etcdserverpb.Maintenance", {"Status": method})
    server.add_generic_rpc_handlers((handlers,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        check_refused(
            EtcdSettings(endpoints=(f"http://127.0.0.1:{port}",), **PATIENT),
            f"runs etcd {version}.* upgrade it",
        )
    finally:
        server.stop(None)


def check_refused(settings, why: str) -> None:
    engine = EtcdEngine(settings)
    with pytest.raises(EngineRefused, match=why):
        engine.head()
    engine.close()
