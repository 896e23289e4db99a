"""A certificate that cannot work is refused at the start, with the action to take. New files are used without a start.

Every engine here asks one endpoint, so one refusal is a refusal by all.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from certificates import make_certificates
from dgpu.entry.chaos.ports import free_port
from dgpu.journal.engine import EngineRefused, EngineUnavailable
from dgpu.journal.etcd.engine import EtcdEngine
from etcd_cluster import EtcdCluster

pytestmark = pytest.mark.timeout(180)
DEADLINE_S = 60.0


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    """It asks for certificates of clients."""
    folder = tmp_path_factory.mktemp("secure")
    with EtcdCluster(folder / "etcd", tls=make_certificates(folder / "pki")) as cluster:
        yield cluster


def check_refused(cluster: EtcdCluster, why: str, **settings: Any) -> None:
    engine = EtcdEngine(cluster.settings(patience_s=1.0, attempt_s=5.0, **settings))
    try:
        with pytest.raises(EngineRefused, match=why):
            engine.head()
    finally:
        engine.close()


def test_the_authority_of_another_cluster(secure, tmp_path) -> None:
    other = make_certificates(tmp_path)
    check_refused(secure, "is not of the authority in ha.tls.ca_file: give", ca_file=str(other["ca"]))


def test_no_files_at_all(secure) -> None:
    why = "is not of an authority that this machine trusts: give the authority in ha.tls.ca_file"
    check_refused(secure, why, ca_file="", cert_file="", key_file="")


def test_no_certificate_of_the_scheduler(secure) -> None:
    why = "it asks for a certificate of this scheduler: give ha.tls.cert_file and ha.tls.key_file"
    check_refused(secure, why, cert_file="", key_file="")


def test_a_certificate_of_the_scheduler_that_etcd_does_not_know(secure, tmp_path) -> None:
    other = make_certificates(tmp_path)
    why = "it does not accept the certificate of this scheduler: check ha.tls.cert_file"
    check_refused(secure, why, cert_file=str(other["cert"]), key_file=str(other["key"]))


def test_a_key_of_another_certificate(secure, tmp_path) -> None:
    other = make_certificates(tmp_path)
    check_refused(secure, "the files of ha.tls cannot be used", key_file=str(other["key"]))


def test_plain_text_to_an_etcd_with_tls(secure) -> None:
    url = secure.endpoints[0].replace("https://", "http://")
    check_refused(secure, "it uses TLS: write https://", endpoints=(url,))


def test_tls_to_an_etcd_without_it(secure, tmp_path) -> None:
    with EtcdCluster(tmp_path) as cluster:
        url = cluster.endpoints[0].replace("http://", "https://")
        check_refused(secure, "it does not use TLS: write http://", endpoints=(url,))


def test_an_expired_certificate(tmp_path) -> None:
    """The same as clocks that are ten years apart."""
    with EtcdCluster(tmp_path / "etcd", tls=make_certificates(tmp_path / "pki", is_expired=True)) as cluster:
        check_refused(cluster, "has expired or is not valid yet: renew it, and check the clocks")


def test_a_certificate_of_another_host(tmp_path) -> None:
    with EtcdCluster(
        tmp_path / "etcd", tls=make_certificates(tmp_path / "pki", host="etcd-9.example")
    ) as cluster:
        check_refused(cluster, "does not name this host: use the name in the certificate")


def test_a_member_that_is_away_is_waited_for(secure, tmp_path) -> None:
    """The other endpoint cannot be used at all, which the text says."""
    other = make_certificates(tmp_path)
    away = f"https://127.0.0.1:{free_port()}"
    settings = secure.settings(
        endpoints=(away, *secure.endpoints), ca_file=str(other["ca"]), patience_s=1.0, attempt_s=5.0
    )
    engine = EtcdEngine(settings)
    try:
        with pytest.raises(EngineUnavailable, match=r"is not of the authority in ha\.tls\.ca_file: give"):
            engine.head()
    finally:
        engine.close()


def test_files_that_are_replaced_are_read_again(tmp_path) -> None:
    """Etcd gets a new authority and new certificates, then the scheduler does. The same engine goes on."""
    used = make_certificates(tmp_path / "used")
    own = _copied(used, tmp_path / "own")
    with EtcdCluster(tmp_path / "etcd", tls=used) as cluster:
        files = {f"{name}_file": str(path) for name, path in own.items()}
        engine = EtcdEngine(cluster.settings(patience_s=2.0, attempt_s=5.0, **files))
        try:
            before = engine.head()
            cluster.kill()
            _copied(make_certificates(tmp_path / "new"), tmp_path / "used")
            cluster.start(0)
            cluster.wait_healthy()
            with pytest.raises(EngineUnavailable):
                engine.head()
            shutil.copy(used["ca"], own["ca"])
            shutil.copy(used["cert"], own["cert"])  # its key is still the old one
            with pytest.raises(EngineUnavailable):
                engine.head()
            shutil.copy(used["key"], own["key"])
            assert _answered(engine) == before
        finally:
            engine.close()


def _copied(files: dict[str, Path], folder: Path) -> dict[str, Path]:
    folder.mkdir(exist_ok=True)
    return {name: Path(shutil.copy(path, folder)) for name, path in files.items()}


def _answered(engine: EtcdEngine) -> Any:
    until_s = time.monotonic() + DEADLINE_S
    while True:
        try:
            return engine.head()
        except EngineUnavailable:
            assert time.monotonic() < until_s, "the new files are not used"


def test_the_scheduler_says_it_in_one_line(secure, tmp_path) -> None:
    """GRPC writes messages of its own to stderr."""
    other, (http, grpc) = make_certificates(tmp_path / "pki"), (free_port(), free_port())
    own = {
        "ca_file": str(secure.settings().ca_file),
        "cert_file": str(other["cert"]),
        "key_file": str(other["key"]),
    }
    written = {
        "server": {"http_address": f"127.0.0.1:{http}", "grpc_address": f"127.0.0.1:{grpc}"},
        "storage": {"snapshot_dir": str(tmp_path / "state"), "journal": "etcd"},
        "ha": {"mode": "external", "name": "a", "endpoints": list(secure.endpoints), "tls": own},
    }
    config = tmp_path / "scheduler.yaml"
    config.write_text(json.dumps(written))
    command = [sys.executable, "-m", "dgpu", "scheduler", "--config", str(config)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()
    assert "it does not accept the certificate of this scheduler: check ha.tls.cert_file" in line
