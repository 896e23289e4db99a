"""The Unix user at the other end of a loopback connection.

The kernel knows it: sock_diag finds the peer's socket by its four numbers. A socket that its process has closed has no
owner and is reported as uid 0. The missing inode identifies it; otherwise a user who sends and closes at once would
count as root.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
from pathlib import Path

_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_NLMSG_ERROR = 2
_NLM_F_REQUEST = 1
_ALL_STATES = 0xFFFFFFFF
_NO_COOKIE = 0xFFFFFFFF
_HEADER = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBBBI")
_ENDS = struct.Struct("!HH16s16s")
_TAIL = struct.Struct("=III")
# inet_diag_msg: family, state, timer, retrans; ends; interface, cookie; expires, rqueue, wqueue, uid, inode
_FACTS = struct.Struct("=IIIII")
_FACTS_AT = _HEADER.size + 4 + _ENDS.size + _TAIL.size

End = tuple[str, int]  # of a connection: host and port, as the kernel names it


class PeerUids:
    """Asks the kernel over one socket that stays open: a lookup needs no further file. Not thread-safe."""

    def __init__(self) -> None:
        self._netlink: socket.socket | None = None
        self._sequence = 0

    def uid(self, ours: End, theirs: End) -> int | None:
        """The uid that owns the socket at `theirs`, connected to `ours`; None if unknown."""
        try:
            if self._netlink is None:
                self._netlink = _open_netlink()
            self._sequence = (self._sequence + 1) & 0xFFFFFFFF
            return _ask(self._netlink, ours, theirs, self._sequence)
        except OSError:
            self.close()
            return _by_proc(ours, theirs)

    def close(self) -> None:
        if self._netlink is not None:
            self._netlink.close()
            self._netlink = None


def peer_uid(ours: End, theirs: End) -> int | None:
    uids = PeerUids()
    try:
        return uids.uid(ours, theirs)
    finally:
        uids.close()


def _open_netlink() -> socket.socket:
    netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG)
    netlink.settimeout(1.0)
    return netlink


def _ask(netlink: socket.socket, ours: End, theirs: End, sequence: int) -> int | None:
    our_ip, their_ip = ipaddress.ip_address(ours[0]), ipaddress.ip_address(theirs[0])
    family = socket.AF_INET if our_ip.version == 4 else socket.AF_INET6
    # The peer's socket: its own end is the source.
    ends = _ENDS.pack(theirs[1], ours[1], their_ip.packed.ljust(16, b"\0"), our_ip.packed.ljust(16, b"\0"))
    wanted = _REQUEST.pack(family, socket.IPPROTO_TCP, 0, 0, _ALL_STATES)
    wanted += ends + _TAIL.pack(0, _NO_COOKIE, _NO_COOKIE)
    header = _HEADER.pack(_HEADER.size + len(wanted), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, sequence, 0)
    netlink.sendto(header + wanted, (0, 0))
    while True:
        answer = netlink.recv(4096)
        _, kind, _, answers, _ = _HEADER.unpack_from(answer)
        if answers == sequence:  # else the late answer to an earlier question
            break
    if kind == _NLMSG_ERROR:
        error = -struct.unpack_from("=i", answer, _HEADER.size)[0]
        if error == 2:  # ENOENT: the socket is gone
            return None
        raise OSError(error, "sock_diag")
    _, _, _, uid, inode = _FACTS.unpack_from(answer, _FACTS_AT)
    return int(uid) if inode else None


def _by_proc(ours: End, theirs: End) -> int | None:
    """The same from text, for kernels without sock_diag."""
    version = ipaddress.ip_address(ours[0]).version
    wanted = [_proc_form(theirs), _proc_form(ours)]
    try:
        lines = (
            Path("/proc/net/tcp" if version == 4 else "/proc/net/tcp6")
            .read_text(encoding="ascii")
            .splitlines()
        )
    except OSError:
        return None
    for line in lines[1:]:
        parts = line.split()
        if parts[1:3] == wanted:
            return int(parts[7]) if parts[9] != "0" else None
    return None


def _proc_form(address: End) -> str:
    packed = ipaddress.ip_address(address[0]).packed
    words = struct.unpack(f"={len(packed) // 4}I", packed)
    return "".join(f"{word:08X}" for word in words) + f":{address[1]:04X}"
