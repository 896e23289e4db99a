"""Exchanges a one-time token for a certificate of this machine.

The scheduler is verified before anything secret is sent: it must show the authority with the fingerprint of the token,
and a certificate of that authority.
"""

from __future__ import annotations

import hmac
import socket
import ssl
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.x509.oid import ExtendedKeyUsageOID

from dgpu.agent.certificate import Certificate, CertificateFiles, read_certificate, request_for
from dgpu.wire.address import Address
from dgpu.wire.machines import (
    MAX_MESSAGE_BYTES,
    SCHEDULER_NAME,
    JoinAnswer,
    JoinGreeting,
    JoinKind,
    JoinRequest,
    JoinToken,
    fingerprint_of,
)

_PATIENCE_S = 20.0
T = TypeVar("T")


class JoinFailed(Exception):  # noqa: N818 - it says what happened
    """The text says why."""


class SchedulerUnreachable(JoinFailed):
    pass


class Joined(msgspec.Struct, frozen=True, kw_only=True):
    certificate: Certificate
    grpc_port: int


def join(server: Address, token: JoinToken, directory: Path) -> Joined:
    """Saves the certificate in `directory`. Raises JoinFailed, or OSError for the directory."""
    files = CertificateFiles(directory)
    key_pem = files.joining_key()
    authority_pem, answer = exchange(server, token, request_for(key_pem), "agent")
    if answer.error:
        files.forget_joining_key()
        raise JoinFailed(f"The scheduler refused: {answer.error}")
    try:
        certificate = read_certificate(key_pem, answer.certificate.encode(), authority_pem)
    except ValueError as error:
        raise JoinFailed(f"The answer of the scheduler cannot be used: {error}") from error
    files.save(certificate)
    return Joined(certificate=certificate, grpc_port=answer.grpc_port)


def first_answer(servers: Sequence[Address], ask: Callable[[Address], T]) -> T:
    """Asks one after the other: a standby does not listen for machines that join. Raises JoinFailed, or
    SchedulerUnreachable with the reason of each.
    """
    reasons: list[str] = []
    for server in servers:
        try:
            return ask(server)
        except SchedulerUnreachable as error:
            reasons.append(str(error))
    raise SchedulerUnreachable("\n".join(reasons))


def exchange(server: Address, token: JoinToken, csr_pem: bytes, kind: JoinKind) -> tuple[bytes, JoinAnswer]:
    """The certificate of the authority, verified, and the scheduler's answer. Raises JoinFailed."""
    try:
        with _connection(server) as connection:
            authority_pem = _verified_authority(connection, token.fingerprint)
            return authority_pem, _ask(connection, token, csr_pem, kind)
    except (ssl.SSLError, TimeoutError, OSError) as error:
        raise SchedulerUnreachable(f"{server} cannot be reached for joining: {error}") from error


def _connection(server: Address) -> ssl.SSLSocket:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    tls.minimum_version = ssl.TLSVersion.TLSv1_3
    # This machine knows the authority only by its fingerprint, so `_verified_authority` does what TLS would do.
    tls.check_hostname = False
    tls.verify_mode = ssl.CERT_NONE
    plain = socket.create_connection((server.host, server.port), timeout=_PATIENCE_S)
    try:
        return tls.wrap_socket(plain, server_hostname=SCHEDULER_NAME)
    except BaseException:
        plain.close()
        raise


def _verified_authority(connection: ssl.SSLSocket, fingerprint: str) -> bytes:
    greeting = _read(connection, JoinGreeting)
    shown = connection.getpeercert(binary_form=True)
    try:
        authority = x509.load_pem_x509_certificate(greeting.authority.encode())
        scheduler = x509.load_der_x509_certificate(shown or b"")
    except ValueError as error:
        raise JoinFailed("The scheduler shows no certificate that can be read.") from error
    found = fingerprint_of(authority.public_bytes(serialization.Encoding.DER))
    if not hmac.compare_digest(found, fingerprint):
        raise JoinFailed(
            f"This is not the scheduler of the token: its authority has the fingerprint {found}. Nothing was sent."
        )
    if why := _why_not_scheduler(scheduler, authority):
        raise JoinFailed(f"This is not the scheduler of the token: {why}. Nothing was sent.")
    return authority.public_bytes(serialization.Encoding.PEM)


def _why_not_scheduler(shown: x509.Certificate, authority: x509.Certificate) -> str:
    try:
        shown.verify_directly_issued_by(authority)
        names = shown.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        usages = shown.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except (InvalidSignature, TypeError, ValueError, x509.ExtensionNotFound):
        return "its certificate is of another authority"
    if SCHEDULER_NAME not in names.get_values_for_type(x509.DNSName):
        return "its certificate is not a scheduler's"
    if ExtendedKeyUsageOID.SERVER_AUTH not in usages:
        return "its certificate is not a scheduler's"
    if not shown.not_valid_before_utc <= datetime.now(UTC) <= shown.not_valid_after_utc:
        return "its certificate is not valid now; compare the clocks of both machines"
    return ""


def _ask(connection: ssl.SSLSocket, token: JoinToken, csr_pem: bytes, kind: JoinKind) -> JoinAnswer:
    request = JoinRequest(join_id=token.join_id, secret=token.secret, csr=csr_pem.decode(), kind=kind)
    connection.sendall(msgspec.json.encode(request) + b"\n")
    return _read(connection, JoinAnswer)


def _read(connection: ssl.SSLSocket, kind: type[T]) -> T:
    content = b""
    while not content.endswith(b"\n"):
        piece = connection.recv(4_096)
        if not piece or len(content) > MAX_MESSAGE_BYTES:
            raise ConnectionError("the other end is not a scheduler that lets machines join")
        content += piece
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.DecodeError as error:
        raise ConnectionError("the other end is not a scheduler that lets machines join") from error
