"""Addresses of members as people write them: `host` or `host:port`, three of them."""

from __future__ import annotations

import socket
from collections.abc import Sequence

import msgspec

from dgpu.wire.address import MAX_PORT, Address, is_loopback, parse_address

CLIENT_PORT = 9379  # not 2379: Debian's package starts an etcd of its own there
MEMBERS = 3
_TAKEN = {2379, 2380}


class MemberAddress(msgspec.Struct, frozen=True, kw_only=True):
    """The written port is for schedulers. The next one is for the other members."""

    client: Address

    @classmethod
    def parse(cls, text: str) -> MemberAddress:
        """ValueError names the expected form."""
        if not text.startswith("[") and text.count(":") != 1:
            text = f"[{text}]:{CLIENT_PORT}" if ":" in text else f"{text}:{CLIENT_PORT}"
        elif text.endswith("]"):
            text = f"{text}:{CLIENT_PORT}"
        address = parse_address(text)
        if not address.host:
            raise ValueError(f"expected a host that the other members reach, got {text!r}")
        if not 0 < address.port < MAX_PORT:
            raise ValueError(f"expected a port from 1 to {MAX_PORT - 1}, got {address.port}")
        if taken := _TAKEN & {address.port, address.port + 1}:
            raise ValueError(
                f"port {min(taken)} belongs to the etcd of the operating system; the usual port here is {CLIENT_PORT}"
            )
        return cls(client=address)

    def __str__(self) -> str:
        return str(self.client)

    @property
    def host(self) -> str:
        return self.client.host

    @property
    def peer(self) -> Address:
        return Address(host=self.client.host, port=self.client.port + 1)

    @property
    def client_url(self) -> str:
        return f"https://{self.client}"

    @property
    def peer_url(self) -> str:
        return f"https://{self.peer}"


def why_not_members(texts: Sequence[str]) -> str:
    """The first mistake in a list of members; empty: there is none."""
    parsed: list[MemberAddress] = []
    for text in texts:
        try:
            parsed.append(MemberAddress.parse(text))
        except ValueError as error:
            return str(error)
    ports = [(each.host, port) for each in parsed for port in (each.client.port, each.peer.port)]
    for number, each in enumerate(parsed):
        if each in parsed[:number]:
            return f"{each} is listed twice"
    if len(ports) != len(set(ports)):
        return "two members on one host need ports that are at least 2 apart: each uses its port and the next one"
    if len(parsed) == 2:
        return (
            "expected three members, got two: two members stop when either one stops. The third may be a machine "
            "without a scheduler: dgpu witness"
        )
    if len(parsed) != MEMBERS:
        return f"expected three members, got {len(parsed)}"
    return ""


def listening_host(host: str) -> str:
    """A member listens on numbers, not on names. A name may have another number on its own machine than elsewhere."""
    if is_loopback(host):
        return "127.0.0.1" if host == "localhost" else _bracketed(host)
    try:
        socket.inet_pton(socket.AF_INET6 if ":" in host else socket.AF_INET, host)
    except OSError:
        pass
    else:
        return _bracketed(host)
    try:
        families = {found[0] for found in socket.getaddrinfo(host, None)}
    except OSError:
        families = {socket.AF_INET}
    return "0.0.0.0" if socket.AF_INET in families else "[::]"  # noqa: S104 - clients need a certificate


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
