"""The certificate authority of one cluster: a key and a certificate in one private file of the scheduler.

Keys are ECDSA on P-256, which every TLS library knows. Certificates name a role, not a host: the scheduler's names
`dgpu-scheduler`, an agent's names its nodes.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from dgpu.journal.durable import PRIVATE_FOLDER, open_new, sync_folder, write_all
from dgpu.wire.machines import MEMBER_NAME, PEER_NAME, MachineNames, fingerprint_of, uris_of

FOLDER = "ca"  # below the scheduler's directory
FILE = "authority.pem"
LIFETIME_S = 3_650 * 86_400
_BACKDATED_S = 300  # clocks of machines differ
_MAX_CSR_BYTES = 16 << 10


class AuthorityMissing(Exception):  # noqa: N818 - it says what happened
    """No authority, or a damaged one. The text says what to do."""


class BadRequest(Exception):  # noqa: N818 - it names the thing
    """The request for a certificate cannot be granted."""


class Issued(msgspec.Struct, frozen=True, kw_only=True):
    certificate_pem: bytes
    expires_at_s: int


class IssuedPair(msgspec.Struct, frozen=True, kw_only=True):
    key_pem: bytes
    certificate_pem: bytes
    expires_at_s: int

    def __repr__(self) -> str:
        return "IssuedPair()"  # no key in a log


class Authority:
    def __init__(self, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
        self._key = key
        self._certificate = certificate
        self.certificate_pem = certificate.public_bytes(serialization.Encoding.PEM)
        self.fingerprint = fingerprint_of(certificate.public_bytes(serialization.Encoding.DER))
        self.expires_at_s = int(certificate.not_valid_after_utc.timestamp())

    def issue_agent(self, csr_pem: bytes, names: MachineNames, *, now_s: int, lifetime_s: int) -> Issued:
        """Only the public key of the request counts; the names are the scheduler's decision. Raises BadRequest."""
        uris = [x509.UniformResourceIdentifier(uri) for uri in uris_of(names)]
        builder = self._builder(key_of_request(csr_pem), "dgpu-agent", now_s, lifetime_s)
        builder = builder.add_extension(x509.SubjectAlternativeName(uris), critical=False)
        builder = builder.add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False
        )
        return self._signed(builder)

    def issue_scheduler(self, names: Sequence[str], *, now_s: int, lifetime_s: int) -> IssuedPair:
        """`names`: the scheduler's role for agents, or host names and addresses for REST."""
        return self._pair(names, ExtendedKeyUsageOID.SERVER_AUTH, now_s, lifetime_s)

    def issue_peer(self, *, now_s: int, lifetime_s: int) -> IssuedPair:
        """For a scheduler that calls another one."""
        return self._pair((PEER_NAME,), ExtendedKeyUsageOID.CLIENT_AUTH, now_s, lifetime_s)

    def issue_member(self, csr_pem: bytes, host: str, *, now_s: int) -> Issued:
        """For a member of the engine, as server and as client. Valid as long as the authority. Raises BadRequest."""
        key = key_of_request(csr_pem)
        builder = self._builder(key, MEMBER_NAME, now_s, LIFETIME_S)
        names = [x509.DNSName(MEMBER_NAME), _general_name(host)]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        return self._signed(builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False))

    def _pair(
        self, names: Sequence[str], usage: x509.ObjectIdentifier, now_s: int, lifetime_s: int
    ) -> IssuedPair:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = self._builder(key.public_key(), "dgpu-scheduler", now_s, lifetime_s)
        shown = x509.SubjectAlternativeName([_general_name(name) for name in names])
        builder = builder.add_extension(shown, critical=False)
        issued = self._signed(builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False))
        return IssuedPair(
            key_pem=_key_pem(key), certificate_pem=issued.certificate_pem, expires_at_s=issued.expires_at_s
        )

    def _builder(
        self, key: ec.EllipticCurvePublicKey, name: str, now_s: int, lifetime_s: int
    ) -> x509.CertificateBuilder:
        expires_at_s = min(now_s + lifetime_s, self.expires_at_s)
        builder = _certificate(name, self._certificate.subject, key, now_s, expires_at_s)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        return builder.add_extension(issuer, critical=False)

    def _signed(self, builder: x509.CertificateBuilder) -> Issued:
        certificate = builder.sign(self._key, hashes.SHA256())
        return Issued(
            certificate_pem=certificate.public_bytes(serialization.Encoding.PEM),
            expires_at_s=int(certificate.not_valid_after_utc.timestamp()),
        )


def key_of_request(csr_pem: bytes) -> ec.EllipticCurvePublicKey:
    if len(csr_pem) > _MAX_CSR_BYTES:
        raise BadRequest("the certificate request is too long")
    try:
        csr = x509.load_pem_x509_csr(csr_pem)
        key = csr.public_key()
        is_signed = csr.is_signature_valid
    except (ValueError, TypeError) as error:
        raise BadRequest("the certificate request cannot be read") from error
    if not is_signed:
        raise BadRequest("the certificate request is not signed by its own key")
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise BadRequest("the key of a certificate request must be ECDSA on P-256")
    return key


def create_authority(data_dir: Path, *, now_s: int) -> tuple[Authority, bool]:
    """An authority that exists is returned as it is, with False."""
    path = data_dir / FOLDER / FILE
    if path.exists():
        return load_authority(data_dir), False
    data_dir.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
    path.parent.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
    give_to_owner_of(data_dir, path.parent)
    key, certificate = _new_authority(now_s)
    fresh = path.with_suffix(".new")
    descriptor = open_new(fresh)
    try:
        write_all(descriptor, _key_pem(key) + certificate.public_bytes(serialization.Encoding.PEM), 0)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    give_to_owner_of(data_dir, fresh)
    try:
        # A link, unlike a rename, never replaces the authority that another process has just made.
        path.hardlink_to(fresh)
    except FileExistsError:
        return load_authority(data_dir), False
    finally:
        fresh.unlink(missing_ok=True)
    sync_folder(path.parent)
    return Authority(key, certificate), True


def load_authority(data_dir: Path) -> Authority:
    path = data_dir / FOLDER / FILE
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise AuthorityMissing(
            f"no certificate authority in {path.parent}. Make one: dgpu ca init --dir {data_dir}"
        ) from None
    except OSError as error:
        raise AuthorityMissing(f"{path} cannot be read: {error.strerror}") from error
    try:
        key = serialization.load_pem_private_key(content, password=None)
        certificate = x509.load_pem_x509_certificate(content)
    except (ValueError, TypeError) as error:
        raise AuthorityMissing(f"{path} is damaged; restore it from a backup") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise AuthorityMissing(f"{path} is damaged: key and certificate differ; restore it from a backup")
    return Authority(key, certificate)


def give_to_owner_of(data_dir: Path, path: Path) -> None:
    """Root may run `dgpu ca` for a scheduler with a user of its own, which must be able to read the files."""
    if os.geteuid() == 0:
        owner = data_dir.stat()
        with contextlib.suppress(OSError):
            os.chown(path, owner.st_uid, owner.st_gid)


def _new_authority(now_s: int) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = f"dgpu-ca-{os.urandom(4).hex()}"
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    usage = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    builder = _certificate(name, subject, key.public_key(), now_s, now_s + LIFETIME_S)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(usage, critical=True)
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    builder = builder.add_extension(identifier, critical=False)
    return key, builder.sign(key, hashes.SHA256())


def _certificate(
    name: str, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now_s: int, expires_at_s: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(dt.datetime.fromtimestamp(now_s - _BACKDATED_S, dt.UTC))
        .not_valid_after(dt.datetime.fromtimestamp(expires_at_s, dt.UTC))
    )


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
