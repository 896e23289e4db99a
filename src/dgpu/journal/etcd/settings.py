"""How to reach an etcd cluster, and which keys in it are ours."""

from __future__ import annotations

from urllib.parse import urlsplit

import msgspec

from dgpu.journal.engine import EngineRefused
from dgpu.wire.address import Address

DEFAULT_QUOTA_BYTES = 2 << 30  # etcd's own default; versions before 3.6 do not tell it


class EtcdSettings(msgspec.Struct, frozen=True, kw_only=True):
    endpoints: tuple[str, ...]  # https://host:port
    prefix: str = "dgpu/"
    ca_file: str = ""  # empty: the authorities of the system
    cert_file: str = ""
    key_file: str = ""
    user: str = ""
    password: str = ""
    ttl_s: int = 5  # of the leader's lease
    attempt_s: float = 1.0  # one try at one endpoint
    patience_s: float = 3.0  # all tries of one call
    quota_bytes: int = DEFAULT_QUOTA_BYTES

    def __repr__(self) -> str:
        """Without the password: settings end up in logs."""
        return f"EtcdSettings(endpoints={self.endpoints}, prefix={self.prefix!r}, user={self.user!r})"


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    url: str
    target: str  # for gRPC
    is_tls: bool


def parse_endpoints(settings: EtcdSettings) -> tuple[Endpoint, ...]:
    """Raises EngineRefused, which names the value and the expected form."""
    if not settings.endpoints:
        raise EngineRefused("no endpoint of etcd is given: expected https://host:port")
    found = tuple(_parse(url) for url in settings.endpoints)
    twice = {one.target for one in found if sum(other.target == one.target for other in found) > 1}
    if twice:
        raise EngineRefused(f"the endpoint {', '.join(sorted(twice))} is listed twice: name each member once")
    if len({one.is_tls for one in found}) > 1:
        raise EngineRefused("some endpoints are https and some are http: use https for all of them")
    for one in found:
        host = urlsplit(one.url).hostname or ""
        if settings.password and not one.is_tls and not Address(host=host, port=0).is_loopback:
            raise EngineRefused(f"the password would be sent to {one.url} in plain text: use https://")
    if bool(settings.user) != bool(settings.password):
        raise EngineRefused("etcd needs a user and a password, or neither of them")
    if bool(settings.cert_file) != bool(settings.key_file):
        raise EngineRefused("a client certificate needs its key: give cert_file and key_file, or neither")
    return found


def _parse(url: str) -> Endpoint:
    parts = urlsplit(url)
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    is_plain = not (parts.path.strip("/") or parts.query or parts.username)
    if parts.scheme not in {"http", "https"} or not host or not port or not is_plain:
        raise EngineRefused(f"endpoint {url!r}: expected https://host:port")
    target = str(Address(host=host, port=port))
    return Endpoint(url=f"{parts.scheme}://{target}", target=target, is_tls=parts.scheme == "https")
