"""Addresses as people write them: `host:port`."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

import msgspec

MAX_PORT = 65_535


class Address(msgspec.Struct, frozen=True, kw_only=True):
    host: str  # empty: every interface
    port: int  # 0: any free one

    @property
    def is_loopback(self) -> bool:
        return is_loopback(self.host)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_address(text: str) -> Address:
    """`host:port`, `:port` for every interface, `[::1]:port`. ValueError names the expected form."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > MAX_PORT:
        raise ValueError(f"expected host:port, got {text!r}")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"expected [address]:port for IPv6, got {text!r}")
    if any(character.isspace() or character in "/[]@" for character in host):
        raise ValueError(f"expected host:port, got {text!r}")
    return Address(host=host, port=int(port))


def address_list(*texts: str) -> list[str]:
    """Addresses with commas between, each once."""
    parts = (part.strip() for text in texts for part in text.split(","))
    return list(dict.fromkeys(part for part in parts if part))


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_safe_url(url: str) -> bool:
    """HTTPS; or plain text that never leaves the machine."""
    parts = urlsplit(url)
    if not parts.hostname or parts.fragment or parts.username:
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname))
