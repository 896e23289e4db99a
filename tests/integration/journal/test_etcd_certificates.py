"""A certificate that cannot work is refused at the start, with the action to take, instead of waited for."""

from __future__ import annotations

import pytest

from certificates import make_certificates
from dgpu.journal.engine import EngineRefused
from dgpu.journal.etcd.engine import EtcdEngine
from dgpu.journal.etcd.failures import certificate_action
from etcd_cluster import EtcdCluster

pytestmark = pytest.mark.timeout(180)


class Failed(Exception):  # noqa: N818 - the name says what happened
    """As gRPC reports it."""

    def details(self) -> str:
        return str(self)


def check_refused(cluster: EtcdCluster, why: str, **settings: str) -> None:
    engine = EtcdEngine(cluster.settings(patience_s=5.0, attempt_s=2.0, **settings))
    try:
        with pytest.raises(EngineRefused, match=why):
            engine.head()
    finally:
        engine.close()


def test_the_authority_of_another_cluster(tmp_path) -> None:
    other = make_certificates(tmp_path / "other")
    with EtcdCluster(tmp_path / "etcd", tls=make_certificates(tmp_path / "pki")) as cluster:
        check_refused(cluster, "is not of the authority in ha.tls.ca_file: give", ca_file=str(other["ca"]))


def test_an_expired_certificate(tmp_path) -> None:
    """The same as clocks that are ten years apart."""
    with EtcdCluster(tmp_path / "etcd", tls=make_certificates(tmp_path / "pki", is_expired=True)) as cluster:
        check_refused(cluster, "has expired or is not valid yet: renew it, and check the clocks")


def test_a_certificate_of_another_host(tmp_path) -> None:
    with EtcdCluster(
        tmp_path / "etcd", tls=make_certificates(tmp_path / "pki", host="etcd-9.example")
    ) as cluster:
        check_refused(cluster, "does not name this host: use the name in the certificate")


@pytest.mark.parametrize(
    "text", ["tls: bad certificate", "SSLV3_ALERT_BAD_CERTIFICATE", "TLSV1_ALERT_UNKNOWN_CA"]
)
def test_a_client_certificate_that_etcd_refuses(text: str) -> None:
    assert "check ha.tls.cert_file and ha.tls.key_file" in certificate_action(Failed(text), "https://e:1")


def test_other_failures_are_waited_for() -> None:
    assert not certificate_action(Failed("Connection refused"), "https://e:1")
