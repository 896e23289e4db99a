"""The section ha: its checks, and the options of the service."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from dgpu.entry.config_problem import Problem
from dgpu.entry.config_types import SchedulerConfig
from dgpu.entry.ha_types import Ha
from dgpu.wire.address import Address, parse_address

if TYPE_CHECKING:
    from dgpu.journal.etcd.settings import EtcdSettings
    from dgpu.service.options import SharedOptions

_EVERY_INTERFACE = {"", "0.0.0.0", "::"}  # noqa: S104 - compared, not bound
_MAX_PASSWORD_BYTES = 4_096


def check_ha(config: SchedulerConfig) -> Iterator[Problem]:
    ha, journal = config.ha, config.storage.journal
    if ha.mode == "off":
        if journal == "etcd":
            yield Problem("storage.journal", "etcd needs ha.mode: managed or external")
        elif ha != Ha():
            yield Problem(
                "ha.mode",
                "is off, but other keys of ha are set: expected managed or external, or no other key",
            )
        return
    if ha.mode == "managed":
        from dgpu.entry.ha.managed import check_managed

        yield from check_managed(ha, journal)
        yield from _check_own_addresses(config)
        return
    if journal != "etcd":
        yield Problem("ha.mode", f"external needs storage.journal: etcd, which is {journal}")
    yield from _check_engine(ha)
    yield from _check_own_addresses(config)
    if config.scheduler.role == "standby":
        yield Problem("scheduler.role", "is decided by the schedulers themselves: remove the key")


def _check_engine(ha: Ha) -> Iterator[Problem]:
    from dgpu.journal.engine import EngineRefused
    from dgpu.journal.etcd.settings import EtcdSettings, parse_endpoints

    if not ha.endpoints:
        yield Problem("ha.endpoints", "expected the addresses of etcd, such as https://etcd-1:2379")
    else:
        try:
            parse_endpoints(EtcdSettings(endpoints=ha.endpoints, prefix=ha.prefix))
        except EngineRefused as error:
            yield Problem("ha.endpoints", str(error))
    if bool(ha.user) != bool(ha.password_file):
        yield Problem("ha.user", "needs ha.password_file, and the other way round")
    if bool(ha.tls.cert_file) != bool(ha.tls.key_file):
        yield Problem("ha.tls.cert_file", "needs ha.tls.key_file, and the other way round")


def _check_own_addresses(config: SchedulerConfig) -> Iterator[Problem]:
    """Others dial them, so they cannot be chosen at the start."""
    for path, text in (
        ("server.http_address", config.server.http_address),
        ("server.grpc_address", config.server.grpc_address),
    ):
        try:
            address = parse_address(text)
        except ValueError:
            continue  # reported with the other checks of the address
        if not address.port:
            yield Problem(path, "needs a port, because other schedulers name it to clients and agents")
    url = config.ha.http_url
    if url and not _is_web_address(url):
        yield Problem("ha.http_url", f"expected http://host:port or https://host:port, got {url!r}")
    if config.ha.grpc_address:
        try:
            address = parse_address(config.ha.grpc_address)
        except ValueError as error:
            yield Problem("ha.grpc_address", str(error))
        else:
            if not address.host or not address.port:
                yield Problem("ha.grpc_address", f"expected host:port, got {config.ha.grpc_address!r}")


def _is_web_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:  # brackets, or a port that is none
        return False


def shared_options(config: SchedulerConfig) -> SharedOptions | None:
    """None: a lone scheduler. Raises OSError if the password cannot be read, HaFailure without a member."""
    ha, server = config.ha, config.server
    if ha.mode == "off":
        return None
    from dgpu.entry.ha.managed import managed_settings
    from dgpu.service.options import SharedOptions

    scheme = "http" if server.http_tls == "none" else "https"
    http = ha.http_url.rstrip("/") or f"{scheme}://{_named(parse_address(server.http_address))}"
    return SharedOptions(
        name=ha.name or socket.gethostname(),
        http=http,
        grpc=ha.grpc_address or str(_named(parse_address(server.grpc_address))),
        read_stale_max_ms=round(ha.read_stale_max * 1_000),
        etcd=managed_settings(config) if ha.mode == "managed" else _external(ha),
    )


def _external(ha: Ha) -> EtcdSettings:
    from dgpu.journal.etcd.settings import EtcdSettings

    return EtcdSettings(
        endpoints=ha.endpoints,
        prefix=ha.prefix,
        ca_file=_expanded(ha.tls.ca_file),
        cert_file=_expanded(ha.tls.cert_file),
        key_file=_expanded(ha.tls.key_file),
        user=ha.user,
        password=_password(ha.password_file),
    )


def _named(address: Address) -> Address:
    """A name that others can dial instead of "every interface"."""
    if address.host in _EVERY_INTERFACE:
        return Address(host=socket.gethostname(), port=address.port)
    return address


def _expanded(path: str) -> str:
    return str(Path(path).expanduser()) if path else ""


def _password(path: str) -> str:
    if not path:
        return ""
    try:
        with Path(path).expanduser().open("rb") as file:
            password = file.read(_MAX_PASSWORD_BYTES).decode().strip()
    except OSError as error:
        raise OSError(f"ha.password_file: {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise OSError(f"ha.password_file: {path}: is not a text in UTF-8") from error
    if not password:
        raise OSError(f"ha.password_file: {path}: is empty")
    return password
