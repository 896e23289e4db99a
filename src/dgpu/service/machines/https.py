"""TLS for REST, with certificate files or with certificates of the cluster's authority.

A new certificate is used without a restart: one context serves all connections, and loads what has changed.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import structlog

from dgpu.journal.durable import write_file
from dgpu.service.machines.authority import FOLDER, AuthorityMissing, load_authority
from dgpu.service.machines.certificate import SchedulerCertificate
from dgpu.service.options import HttpTls, OptionsRefused

PAIR_FILE = "https.pem"  # Python's ssl reads keys only from files
LOOK_SECONDS = 2.0

_log = structlog.get_logger("dgpu.rest")
Version = object


class HttpsCertificate:
    """`version` tells whether `load` would load another certificate than the last time."""

    def __init__(self, version: Callable[[], Version], load: Callable[[ssl.SSLContext], None]) -> None:
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.context.set_alpn_protocols(["http/1.1"])
        self._version = version
        self._load = load
        self._loaded = version()
        load(self.context)

    async def keep_current(self) -> None:
        """A certificate that cannot be loaded leaves the one before in use."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                found = await asyncio.to_thread(self._version)
                if found != self._loaded:
                    self._load(self.context)
                    self._loaded = found
                    _log.info("https_certificate_loaded")
            except (OSError, ssl.SSLError) as error:
                _log.warning("https_certificate_not_loaded", error=str(error))


@contextlib.asynccontextmanager
async def https(tls: HttpTls, data_dir: Path) -> AsyncIterator[ssl.SSLContext]:
    """Raises OptionsRefused."""
    try:
        certificate = _from_files(tls) if tls.certificate_file else _from_authority(tls, data_dir)
    except AuthorityMissing as error:
        raise OptionsRefused(f"server.http_tls: {error}") from error
    except (OSError, ssl.SSLError) as error:
        raise OptionsRefused(f"server.http_certificate_file, server.http_key_file: {error}") from error
    keeping = asyncio.create_task(certificate.keep_current(), name="https-certificate")
    try:
        yield certificate.context
    finally:
        keeping.cancel()


def _from_files(tls: HttpTls) -> HttpsCertificate:
    files = (Path(tls.certificate_file), Path(tls.key_file))

    def version() -> Version:
        return tuple(
            (found.st_mtime_ns, found.st_ino, found.st_size) for found in (file.stat() for file in files)
        )

    return HttpsCertificate(version, lambda context: context.load_cert_chain(*files))


def _from_authority(tls: HttpTls, data_dir: Path) -> HttpsCertificate:
    held = SchedulerCertificate(
        load_authority(data_dir), names=tls.names, lifetime_s=tls.certificate_lifetime_s, clock=time.time
    )
    path = data_dir / FOLDER / PAIR_FILE

    def load(context: ssl.SSLContext) -> None:
        pair = held.current()
        write_file(path, pair.key_pem + pair.certificate_pem)
        context.load_cert_chain(path)

    return HttpsCertificate(lambda: held.current().certificate_pem, load)
