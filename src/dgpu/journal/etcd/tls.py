"""Certificates for etcd: the files that the settings name, and why a connection with them cannot work.

gRPC reports a refused certificate in words that differ between versions, or as a broken connection. So a failure is
looked into with one connection of our own.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
from pathlib import Path
from typing import NamedTuple

import grpc

from dgpu.journal.engine import EngineRefused
from dgpu.journal.etcd.settings import Endpoint, EtcdSettings
from dgpu.wire.address import Address, parse_address

_FIELDS = ("ca_file", "key_file", "cert_file")
# Debian and Alpine, Fedora, SUSE. gRPC has a list of its own, which misses authorities that the machine's owner added.
_SYSTEM_FILES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
)
_USES_TLS = "it uses TLS: write https://"
_USES_PLAIN_TEXT = "it does not use TLS: write http://, or start etcd with --cert-file and --key-file"
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0"  # the first bytes of every gRPC client


class TlsFiles(NamedTuple):
    """Their contents. None: the setting is empty."""

    ca: bytes | None
    key: bytes | None
    certificate: bytes | None

    def credentials(self) -> grpc.ChannelCredentials:
        return grpc.ssl_channel_credentials(self.ca, self.key, self.certificate)


def read_tls_files(settings: EtcdSettings) -> TlsFiles:
    """Raises EngineRefused, which names the file."""
    paths = {field: getattr(settings, field) for field in _FIELDS}
    paths["ca_file"] = paths["ca_file"] or _system_authorities()
    contents = []
    for field, path in paths.items():
        try:
            contents.append(Path(path).read_bytes() if path else None)
        except OSError as error:
            raise EngineRefused(f"{field} of etcd, {path}: {error.strerror or error}") from error
    return TlsFiles(*contents)


def changed_tls_files(settings: EtcdSettings, known: TlsFiles) -> TlsFiles | None:
    """None: they are as before, or cannot be used, for example because only the first of two has been replaced."""
    try:
        found = read_tls_files(settings)
        if found == known:
            return None
        _context(settings)
    except (EngineRefused, OSError, ValueError):
        return None
    return found


def why_not(endpoint: Endpoint, settings: EtcdSettings, timeout_s: float) -> str:
    """The reason for which no connection to this endpoint can work, with the action; empty: none was found."""
    try:
        address = parse_address(endpoint.target)
        if not endpoint.is_tls:
            found = _USES_TLS if _uses_tls(address, timeout_s) else ""
        elif _uses_plain_text(address, timeout_s):
            found = _USES_PLAIN_TEXT
        else:
            found = _tried(address, settings, timeout_s)
    except (OSError, ValueError):
        return ""  # the machine or the member is away: worth waiting for
    return f"{endpoint.url}: {found}" if found else ""


def _tried(address: Address, settings: EtcdSettings, timeout_s: float) -> str:
    """Raises OSError."""
    try:
        context = _context(settings)
    except (OSError, ValueError) as error:
        return f"the files of ha.tls cannot be used: {error}"
    context.set_alpn_protocols(["h2"])
    try:
        with (
            _connected(address, timeout_s) as plain,
            context.wrap_socket(plain, server_hostname=address.host) as connection,
        ):
            connection.sendall(_PREFACE)
            connection.recv(1)  # a member that refuses our certificate says so only after the handshake
    except ssl.SSLCertVerificationError as error:
        return _about_its_certificate(error, settings)
    except ssl.SSLEOFError:
        return ""  # as of a member that is being stopped
    except ssl.SSLError as error:
        return _about_the_connection(error.reason or "", settings)
    return ""


def _about_its_certificate(error: ssl.SSLCertVerificationError, settings: EtcdSettings) -> str:
    text = error.verify_message.lower()
    if "expired" in text or "not yet valid" in text:
        return (
            "its certificate has expired or is not valid yet: renew it, and check the clocks of both machines"
        )
    if "mismatch" in text or "not valid for" in text:
        return "its certificate does not name this host: use the name in the certificate, or renew it with this one"
    if settings.ca_file:
        return "its certificate is not of the authority in ha.tls.ca_file: give the authority of this etcd"
    return "its certificate is not of an authority that this machine trusts: give the authority in ha.tls.ca_file"


def _about_the_connection(reason: str, settings: EtcdSettings) -> str:
    """`reason`: a name of OpenSSL."""
    if "CERTIFICATE" in reason or "UNKNOWN_CA" in reason:
        if not settings.cert_file:
            return "it asks for a certificate of this scheduler: give ha.tls.cert_file and ha.tls.key_file"
        return (
            "it does not accept the certificate of this scheduler: check ha.tls.cert_file and ha.tls.key_file"
        )
    return f"TLS fails ({reason}): check the version and the certificates of this etcd"


def _uses_tls(address: Address, timeout_s: float) -> bool:
    """Raises OSError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # nothing but the handshake is sent
    try:
        with _connected(address, timeout_s) as plain, context.wrap_socket(plain):
            return True
    except ssl.SSLError:
        return False


def _uses_plain_text(address: Address, timeout_s: float) -> bool:
    """Raises OSError."""
    with _connected(address, timeout_s) as plain:
        plain.sendall(b"GET /version HTTP/1.1\r\nHost: etcd\r\nConnection: close\r\n\r\n")
        return plain.recv(64).startswith((b"HTTP/1.1 200", b"HTTP/1.0 200"))


def _connected(address: Address, timeout_s: float) -> socket.socket:
    return socket.create_connection((address.host, address.port), timeout_s)


def _context(settings: EtcdSettings) -> ssl.SSLContext:
    """Raises OSError or ValueError."""
    authorities = settings.ca_file or _system_authorities() or None
    context = ssl.create_default_context(cafile=authorities)
    if settings.cert_file:
        context.load_cert_chain(settings.cert_file, settings.key_file)
    return context


def _system_authorities() -> str:
    """A file; empty: gRPC's own list is used."""
    named = os.environ.get(ssl.get_default_verify_paths().openssl_cafile_env, "")
    with contextlib.suppress(OSError):
        return next((path for path in (named, *_SYSTEM_FILES) if path and Path(path).is_file()), "")
    return ""
