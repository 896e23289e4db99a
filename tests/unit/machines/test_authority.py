"""The certificate authority of a cluster: what it signs, and where its key is."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from dgpu.agent.certificate import CertificateFiles, new_key, read_certificate, request_for
from dgpu.agent.channel import CertificateUnusable
from dgpu.service.machines.authority import (
    FILE,
    FOLDER,
    AuthorityMissing,
    BadRequest,
    create_authority,
    load_authority,
)
from dgpu.service.machines.certificate import SchedulerCertificate
from dgpu.wire.machines import SCHEDULER_NAME, MachineNames

NOW_S = 1_800_000_000
NAMES = MachineNames(join_id="0123456789abcdef", nodes=frozenset({"n1", "n2"}))


def test_an_authority_is_made_once_and_its_key_is_private(tmp_path: Path) -> None:
    authority, is_new = create_authority(tmp_path, now_s=NOW_S)
    again, is_new_again = create_authority(tmp_path, now_s=NOW_S + 1)
    assert (is_new, is_new_again) == (True, False)
    assert again.fingerprint == authority.fingerprint
    path = tmp_path / FOLDER / FILE
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("content", [b"", b"rubbish", b"-----BEGIN CERTIFICATE-----\n"])
def test_a_damaged_authority_is_refused_and_not_replaced(tmp_path: Path, content: bytes) -> None:
    create_authority(tmp_path, now_s=NOW_S)
    path = tmp_path / FOLDER / FILE
    path.write_bytes(content)
    with pytest.raises(AuthorityMissing, match="damaged"):
        create_authority(tmp_path, now_s=NOW_S)
    assert path.read_bytes() == content


def test_a_missing_authority_names_the_command_that_makes_one(tmp_path: Path) -> None:
    with pytest.raises(AuthorityMissing, match=f"dgpu ca init --dir {tmp_path}"):
        load_authority(tmp_path)


def test_the_authority_decides_the_names_and_keeps_the_key_of_the_request(tmp_path: Path) -> None:
    authority, _ = create_authority(tmp_path, now_s=NOW_S)
    key = new_key()
    issued = authority.issue_agent(request_for(key), NAMES, now_s=NOW_S, lifetime_s=3_600)
    certificate = read_certificate(key, issued.certificate_pem, authority.certificate_pem)
    assert (certificate.names, certificate.expires_at_s) == (NAMES, NOW_S + 3_600)
    assert x509.load_pem_x509_certificate(issued.certificate_pem).extensions.get_extension_for_class(
        x509.BasicConstraints
    ).value == x509.BasicConstraints(ca=False, path_length=None)


def test_no_certificate_outlives_the_authority(tmp_path: Path) -> None:
    authority, _ = create_authority(tmp_path, now_s=NOW_S)
    late_s = authority.expires_at_s - 10
    issued = authority.issue_agent(request_for(new_key()), NAMES, now_s=late_s, lifetime_s=3_600)
    assert issued.expires_at_s == authority.expires_at_s


def test_requests_that_are_no_requests_are_refused(tmp_path: Path) -> None:
    authority, _ = create_authority(tmp_path, now_s=NOW_S)
    good = request_for(new_key())
    other = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
    subject = x509.Name([])
    weak = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(other, hashes.SHA256())
    for csr in (b"", b"rubbish", good[:200], good * 100, weak.public_bytes(serialization.Encoding.PEM)):
        with pytest.raises(BadRequest):
            authority.issue_agent(csr, NAMES, now_s=NOW_S, lifetime_s=60)


def test_the_schedulers_certificate_is_renewed_before_it_expires(tmp_path: Path) -> None:
    authority, _ = create_authority(tmp_path, now_s=NOW_S)
    now_s = float(NOW_S)
    held = SchedulerCertificate(authority, lifetime_s=300, clock=lambda: now_s)
    first = held.current()
    now_s += 199
    assert held.current() is first
    now_s += 1
    second = held.current()
    assert (second is first, second.expires_at_s) == (False, NOW_S + 500)
    names = x509.load_pem_x509_certificate(second.certificate_pem).extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    )
    assert names.value.get_values_for_type(x509.DNSName) == [SCHEDULER_NAME]
    assert "PRIVATE" not in repr(second)


def test_the_files_of_a_machine_are_private_and_replaced_as_one(tmp_path: Path) -> None:
    authority, _ = create_authority(tmp_path / "s", now_s=NOW_S)
    files = CertificateFiles(tmp_path / "tls")
    key = files.joining_key()
    assert files.joining_key() == key
    issued = authority.issue_agent(request_for(key), NAMES, now_s=NOW_S, lifetime_s=60)
    certificate = read_certificate(key, issued.certificate_pem, authority.certificate_pem)
    files.save(certificate)
    assert files.load() == certificate
    assert "PRIVATE" not in repr(certificate)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "tls").iterdir()}
    assert modes == {"agent.pem": 0o600, "ca.pem": 0o600}


def test_the_certificate_of_another_authority_or_key_is_unusable(tmp_path: Path) -> None:
    ours, _ = create_authority(tmp_path / "a", now_s=NOW_S)
    theirs, _ = create_authority(tmp_path / "b", now_s=NOW_S)
    key = new_key()
    issued = theirs.issue_agent(request_for(key), NAMES, now_s=NOW_S, lifetime_s=60)
    with pytest.raises(ValueError, match="another authority"):
        read_certificate(key, issued.certificate_pem, ours.certificate_pem)
    with pytest.raises(ValueError, match="differ"):
        read_certificate(new_key(), issued.certificate_pem, theirs.certificate_pem)
    with pytest.raises(CertificateUnusable, match="cannot be read"):
        CertificateFiles(tmp_path / "nothing").load()
