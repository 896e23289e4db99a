"""Callers that may act as agents on loopback: the scheduler's own user and root.

An agent receives commands and environments of tasks, and its reports end tasks. Other users of the machine must not be
able to pose as an agent.
"""

from __future__ import annotations

import ipaddress
import os
from urllib.parse import unquote

from dgpu.service.rest.peer import End, peer_uid
from dgpu.wire.address import Address, parse_address


def is_ours(peer: str, ours: Address) -> bool:
    """`peer` as gRPC names it: `ipv4:127.0.0.1:4711`, `ipv6:%5B::1%5D:4711`. An unidentified peer is refused."""
    theirs = end_of(peer)
    return theirs is not None and is_our_user(_our_end(theirs, ours), theirs)


def is_our_user(ours: End, theirs: End) -> bool:
    return peer_uid(ours, theirs) in {0, os.getuid()}


def end_of(peer: str) -> End | None:
    _, _, address = unquote(peer).partition(":")
    try:
        found = parse_address(address)
    except ValueError:
        return None
    return found.host, found.port


def _our_end(theirs: End, ours: Address) -> End:
    """A name like localhost may mean both address families: the caller's address tells which."""
    version = ipaddress.ip_address(theirs[0]).version
    try:
        if ipaddress.ip_address(ours.host).version == version:
            return ours.host, ours.port
    except ValueError:
        pass
    return "127.0.0.1" if version == 4 else "::1", ours.port


def address_of(peer: str) -> str:
    """Empty: it has none."""
    end = end_of(peer)
    return "" if end is None else end[0]
