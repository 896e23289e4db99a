"""Ports for servers that are started later, by their configuration.

The kernel gives outgoing connections ports from 32768 on. These are lower, so no connection takes one between the
choice and the start of its server.
"""

from __future__ import annotations

import secrets
import socket

_FIRST, _BEHIND = 20_000, 32_000
_given: set[int] = set()


def free_port(following: int = 0) -> int:
    """Each is given once in this process. `following`: so many ports after it are free as well."""
    while True:
        first = _FIRST + secrets.randbelow(
            _BEHIND - _FIRST - following
        )  # other processes choose at the same time
        wanted = range(first, first + following + 1)
        if _given.isdisjoint(wanted) and all(map(_is_free, wanted)):
            _given.update(wanted)
            return first


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
