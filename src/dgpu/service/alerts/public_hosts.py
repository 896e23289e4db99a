"""Hosts on the Internet: every address of theirs is public."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from urllib.parse import urlsplit


class NotPublic(Exception):  # noqa: N818 - the name states the failure
    """The host has an address of a private network or of this machine."""


async def public_address(url: str) -> str:
    """An address of the host, if all of its addresses are public. Raises OSError and NotPublic."""
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = [ipaddress.ip_address(str(each[4][0]).partition("%")[0]) for each in found]
    if not addresses or not all(map(is_public, addresses)):
        raise NotPublic("its host has an address that is not public")
    return str(addresses[0])


def is_public(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    inner = getattr(address, "ipv4_mapped", None) or getattr(address, "sixtofour", None)
    return address.is_global and not address.is_multicast and (inner is None or is_public(inner))
