"""Listening sockets of the node, and the address at which a connection reaches only sockets of one run.

The tables of the kernel name the inode of each socket. A socket belongs to a run if one of the run's processes has it
open: a program cannot forge that, unlike a port number.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import struct
from collections.abc import Iterable
from typing import NamedTuple

_LISTENS = "0A"  # of the kernel's states of a connection
_LOOPBACK_4 = ipaddress.IPv4Address("127.0.0.1")
_LOOPBACK_6 = ipaddress.IPv6Address("::1")

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Listener(NamedTuple):
    address: Address
    inode: int


def listeners(port: int) -> list[Listener]:
    """All sockets of this thread's network that listen on the port."""
    found: list[Listener] = []
    for table in ("/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"):
        with contextlib.suppress(FileNotFoundError), open(table) as file:  # noqa: PTH123 - not a path of a user
            found += parse(file, port)
    return found


def parse(lines: Iterable[str], port: int) -> list[Listener]:
    """Lines of /proc/net/tcp or tcp6."""
    found = []
    for line in lines:
        words = line.split()
        if len(words) < 10 or words[3] != _LISTENS:
            continue
        host, _, number = words[1].rpartition(":")
        if int(number, 16) == port:
            found.append(Listener(_address(host), int(words[9])))
    return found


def reachable(found: list[Listener], own: frozenset[int]) -> Address | None:
    """Where a connection reaches a socket with one of these inodes, and certainly no other one."""
    candidates: list[Address] = []
    for listener in found:
        if listener.inode not in own:
            continue
        if not listener.address.is_unspecified:
            candidates.append(listener.address)
        elif listener.address.version == 4:
            candidates.append(_LOOPBACK_4)
        else:
            candidates += [_LOOPBACK_6, _LOOPBACK_4]
    for address in candidates:
        takers = takers_of(found, address)
        if takers and takers <= own:
            return address
    return None


def takers_of(found: list[Listener], address: Address) -> frozenset[int]:
    """Inodes of the sockets that may get a connection to this address: those bound to it, else those bound to all."""
    exact = frozenset(each.inode for each in found if each.address == address)
    return exact or frozenset(
        each.inode
        for each in found
        if each.address.is_unspecified and (each.address.version == 6 or address.version == 4)
    )


def sockets_of(pids: Iterable[int], wanted: frozenset[int]) -> frozenset[int]:
    """The inodes among `wanted` that these processes have open."""
    names = {f"socket:[{inode}]": inode for inode in wanted}
    found: set[int] = set()
    for pid in pids:
        with contextlib.suppress(OSError):  # it has ended
            for number in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208 - many in a row
                with contextlib.suppress(OSError):
                    inode = names.get(os.readlink(f"/proc/{pid}/fd/{number}"))  # noqa: PTH115 - as above
                    if inode is not None:
                        found.add(inode)
        if len(found) == len(wanted):
            break
    return frozenset(found)


def _address(text: str) -> Address:
    """Words of 32 bits, each in the byte order of this machine."""
    packed = b"".join(struct.pack("=I", int(text[at : at + 8], 16)) for at in range(0, len(text), 8))
    if len(packed) == 4:
        return ipaddress.IPv4Address(packed)
    address = ipaddress.IPv6Address(packed)
    return address.ipv4_mapped or address
