"""Connections at the agents' port that ended before any call: their TLS handshake failed.

gRPC refuses wrong, expired and foreign certificates by itself and reports nothing. The kernel reports every closed TCP
connection, with both addresses and the number of received bytes (netlink, group `TCP_DESTROY`, no rights are needed).
A connection that has sent something but made no call is one whose handshake was refused. Bare connects of health checks
have sent nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import socket
import struct
from collections.abc import Callable
from typing import Final

import structlog

from dgpu.service.grpc.peers import end_of
from dgpu.service.rest.peer import End

SETTLE_SECONDS: Final = 1.0  # the call of a connection may be noticed after its end
MAX_KNOWN: Final = 65_536  # peers with a call; events that were lost leave some behind
MAX_SETTLING: Final = 1_024
_PER_TURN: Final = 64
_KERNEL: Final = 0  # root could send messages, too

_NETLINK_SOCK_DIAG: Final = 4
_SOL_NETLINK: Final = 270
_ADD_MEMBERSHIP: Final = 1
_GROUPS: Final = (1, 3)  # TCP_DESTROY of IPv4 and IPv6
_SO_ATTACH_FILTER: Final = 26
_HEADER: Final = 16  # of a netlink message
_PORTS: Final = struct.Struct("!HH")  # local, remote
_ATTRIBUTE: Final = struct.Struct("=HH")  # length, kind
_FIRST_ATTRIBUTE: Final = _HEADER + 72
_TCP_INFO: Final = 2
_BYTES_RECEIVED: Final = 128  # offset in tcp_info

_log = structlog.get_logger("dgpu.grpc")


class Handshakes:
    def __init__(self, on_failed: Callable[[str], None]) -> None:
        """`on_failed` gets the address of the peer."""
        self._on_failed = on_failed
        self._passed: dict[End, None] = {}  # peers with a call, the oldest first
        self._settling: dict[End, None] = {}  # closed connections without a call so far
        self._socket: socket.socket | None = None

    def start(self, port: int) -> None:
        try:
            self._socket = _listen(port)
        except OSError as error:  # a sandbox may forbid it
            _log.warning("handshakes_unseen", error=error.strerror)
            return
        asyncio.get_running_loop().add_reader(self._socket, self._read)

    def stop(self) -> None:
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None

    def passed(self, peer: str) -> None:
        """A call of this peer, as gRPC names it."""
        end = end_of(peer)
        if end is not None and self._socket is not None:
            self._passed[_plain(end)] = None
            if len(self._passed) > MAX_KNOWN:
                del self._passed[next(iter(self._passed))]

    def _read(self) -> None:
        assert self._socket is not None  # noqa: S101 - else there is no reader
        with contextlib.suppress(OSError):  # empty, or events were lost
            for _ in range(_PER_TURN):
                message, (sender, _groups) = self._socket.recvfrom(4_096)
                if sender == _KERNEL:
                    self.closed(message)

    def closed(self, message: bytes) -> None:
        """A message of the kernel about a connection at the port."""
        end, received = closed_peer(message)
        if (
            received <= 1 or len(self._settling) >= MAX_SETTLING
        ):  # nothing but its end, or too many to tell apart
            self._passed.pop(end, None)
        else:
            self._settling[end] = None
            asyncio.get_running_loop().call_later(SETTLE_SECONDS, self._settle, end)

    def _settle(self, end: End) -> None:
        self._settling.pop(end, None)
        if end in self._passed:
            del self._passed[end]
        elif self._socket is not None:
            self._on_failed(end[0])


def closed_peer(message: bytes) -> tuple[End, int]:
    """The remote end of a closed connection, and the number of bytes that it has sent."""
    is_v4 = message[_HEADER] == socket.AF_INET
    _, port = _PORTS.unpack_from(message, _HEADER + 4)
    address = message[_HEADER + 24 :][: 4 if is_v4 else 16]
    host = socket.inet_ntop(socket.AF_INET if is_v4 else socket.AF_INET6, address)
    received = 2  # an older kernel does not count: say that something came
    at = _FIRST_ATTRIBUTE
    while at + _ATTRIBUTE.size <= len(message):
        length, kind = _ATTRIBUTE.unpack_from(message, at)
        if kind == _TCP_INFO and length >= _ATTRIBUTE.size + _BYTES_RECEIVED + 8:
            (received,) = struct.unpack_from("=Q", message, at + _ATTRIBUTE.size + _BYTES_RECEIVED)
        at += max(_ATTRIBUTE.size, (length + 3) & ~3)
    return _plain((host, port)), received


def _plain(end: End) -> End:
    return end[0].removeprefix("::ffff:"), end[1]


def _listen(port: int) -> socket.socket:
    found = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG)
    try:
        found.setblocking(False)
        _only_of(found, port)
        found.bind((0, 0))
        for group in _GROUPS:
            found.setsockopt(_SOL_NETLINK, _ADD_MEMBERSHIP, group)
    except OSError:
        found.close()
        raise
    return found


def _only_of(listener: socket.socket, port: int) -> None:
    """Drops events of other ports in the kernel: connections of REST clients come and go by the thousand."""
    program = (
        struct.pack("=HBBI", 0x28, 0, 0, _HEADER + 4)  # load the local port
        + struct.pack("=HBBI", 0x15, 0, 1, port)  # skip the next step unless it is ours
        + struct.pack("=HBBI", 0x06, 0, 0, 0xFFFFFFFF)  # keep
        + struct.pack("=HBBI", 0x06, 0, 0, 0)  # drop
    )
    steps = ctypes.create_string_buffer(program, len(program))
    listener.setsockopt(
        socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HP", len(program) // 8, ctypes.addressof(steps))
    )
