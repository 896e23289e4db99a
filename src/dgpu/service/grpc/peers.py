"""Who may call as an agent on loopback: our own user and root.

An agent is given commands and the environments of tasks, and its word ends them. Other users of the machine must not
be able to pose as one.
"""

from __future__ import annotations

import ipaddress
import os
from urllib.parse import unquote

from dgpu.service.rest.peer import Address, peer_uid


def is_ours(peer: str, our_host: str, our_port: int) -> bool:
    """`peer` as gRPC names it: `ipv4:127.0.0.1:4711`, `ipv6:%5B::1%5D:4711`. Whoever cannot be told is nobody."""
    theirs = address_of(peer)
    return theirs is not None and is_our_user(_our_end(theirs, our_host, our_port), theirs)


def is_our_user(ours: Address, theirs: Address) -> bool:
    return peer_uid(ours, theirs) in {0, os.getuid()}


def address_of(peer: str) -> Address | None:
    _, _, address = unquote(peer).partition(":")
    host, _, port = address.rpartition(":")
    return (host.strip("[]"), int(port)) if port.isdigit() else None


def _our_end(theirs: Address, our_host: str, our_port: int) -> Address:
    """A name like localhost may mean both families: the caller's tells which."""
    version = ipaddress.ip_address(theirs[0]).version
    try:
        if ipaddress.ip_address(our_host).version == version:
            return our_host, our_port
    except ValueError:
        pass
    return "127.0.0.1" if version == 4 else "::1", our_port
