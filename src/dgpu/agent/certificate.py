"""The certificate of this machine: its files, its key, and the request for a certificate. The key never leaves."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from dgpu.agent.channel import CertificateUnusable
from dgpu.agent.options import PAIR_FILE
from dgpu.wire.machines import MachineNames, names_in

AUTHORITY_FILE = "ca.pem"
JOINING_FILE = "joining.pem"  # the key of a join that has not ended
_PRIVATE = 0o600


class Certificate(msgspec.Struct, frozen=True, kw_only=True):
    key_pem: bytes
    certificate_pem: bytes
    authority_pem: bytes
    names: MachineNames
    begins_at_s: int
    expires_at_s: int

    def __repr__(self) -> str:
        return f"Certificate(names={self.names!r})"  # no key in a log

    def renew_at_s(self, renew_before_s: float) -> float:
        """0: when a third of its lifetime is left."""
        return self.expires_at_s - (renew_before_s or (self.expires_at_s - self.begins_at_s) / 3)


class CertificateFiles:
    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def load(self) -> Certificate:
        """Raises CertificateUnusable."""
        path = self.directory / PAIR_FILE
        try:
            pair = path.read_bytes()
            authority_pem = (self.directory / AUTHORITY_FILE).read_bytes()
        except OSError as error:
            raise CertificateUnusable(f"{error.filename} cannot be read: {error.strerror}") from error
        try:
            return read_certificate(pair, pair, authority_pem)
        except ValueError as error:
            raise CertificateUnusable(f"{path} is damaged: {error}. Join again: dgpu agent join") from error

    def save(self, certificate: Certificate) -> None:
        """Returns when it is durable."""
        self._prepare()
        self._write(AUTHORITY_FILE, certificate.authority_pem)
        self._write(PAIR_FILE, certificate.key_pem + certificate.certificate_pem)
        self.forget_joining_key()

    def joining_key(self) -> bytes:
        """A join that is tried again uses the same key: the scheduler then repeats its answer."""
        path = self.directory / JOINING_FILE
        try:
            return path.read_bytes()
        except FileNotFoundError:
            self._prepare()
            self._write(JOINING_FILE, new_key())
            return path.read_bytes()

    def forget_joining_key(self) -> None:
        (self.directory / JOINING_FILE).unlink(missing_ok=True)

    def _prepare(self) -> None:
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def _write(self, name: str, content: bytes) -> None:
        path = self.directory / name
        fresh = path.with_suffix(".new")
        fresh.unlink(missing_ok=True)  # a file that was left with another mode
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _PRIVATE)
        try:
            os.write(fd, content)
            os.fsync(fd)
        finally:
            os.close(fd)
        fresh.replace(path)
        folder = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def read_certificate(key_pem: bytes, certificate_pem: bytes, authority_pem: bytes) -> Certificate:
    """ValueError for parts that do not belong together. Either content may hold more than its own part."""
    key = _load_key(key_pem)
    certificate = x509.load_pem_x509_certificate(certificate_pem)
    if key.public_key() != certificate.public_key():
        raise ValueError("key and certificate differ")
    try:
        certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(authority_pem))
    except (InvalidSignature, TypeError, ValueError) as error:
        raise ValueError("the certificate is of another authority") from error
    names = names_in(_uris(certificate))
    if names is None:
        raise ValueError("the certificate names no node")
    return Certificate(
        key_pem=_key_pem(key),
        certificate_pem=certificate.public_bytes(serialization.Encoding.PEM),
        authority_pem=authority_pem,
        names=names,
        begins_at_s=int(certificate.not_valid_before_utc.timestamp()),
        expires_at_s=int(certificate.not_valid_after_utc.timestamp()),
    )


def new_key() -> bytes:
    return _key_pem(ec.generate_private_key(ec.SECP256R1()))


def request_for(key_pem: bytes) -> bytes:
    """A certificate request, PEM. The names are the scheduler's decision, so it has none."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "dgpu-agent")])
    csr = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(subject)
        .sign(_load_key(key_pem), hashes.SHA256())
    )
    return csr.public_bytes(serialization.Encoding.PEM)


def _uris(certificate: x509.Certificate) -> list[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return names.get_values_for_type(x509.UniformResourceIdentifier)


def _load_key(key_pem: bytes) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(key_pem, password=None)
    except TypeError as error:
        raise ValueError("the key has a password") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("the key is not ECDSA")  # noqa: TRY004 - the file's fault, not a caller's
    return key


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
