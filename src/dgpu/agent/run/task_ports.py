"""Which port of the node each port of a run stands for. The keeper records it, so the next agent knows it, too."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dgpu.core.model.ids import LeaseId

_FIRST_UNPRIVILEGED = 1024
_MAX_CHOICES = 100


class TaskPorts:
    def __init__(self) -> None:
        self._given: dict[LeaseId, dict[int, int]] = {}

    def greet(self, records: Iterable[dict[str, Any]]) -> None:
        """The full state of a keeper."""
        self._given = {
            LeaseId(record["lease"]): dict(record["ports"])
            for record in records
            if record.get("ports") and "end" not in record
        }

    def forget(self, lease_id: LeaseId) -> None:
        self._given.pop(lease_id, None)

    def of(self, lease_id: LeaseId) -> Mapping[int, int]:
        return self._given.get(lease_id, {})

    def give(
        self, lease_id: LeaseId, asked: Sequence[int], *, as_root: bool, own_network: bool = False
    ) -> dict[int, int]:
        """Each port itself if it is free, else a free one. A repeated order gets the same ports.

        `as_root`: the program may listen on ports below 1024. `own_network`: of a container; all ports are free there.
        Raises ValueError if no port is free.
        """
        if own_network and lease_id not in self._given:
            self._given[lease_id] = {port: port for port in asked}
        if lease_id not in self._given and asked:
            taken = {port for given in self._given.values() for port in given.values()}
            chosen: dict[int, int] = {}
            for port in asked:
                may_have = port not in taken and (as_root or port >= _FIRST_UNPRIVILEGED) and is_free(port)
                chosen[port] = port if may_have else _free_port(taken | set(asked))
                taken.add(chosen[port])
            self._given[lease_id] = chosen
        return self._given.get(lease_id, {})


def is_free(port: int) -> bool:
    """On all addresses of this machine, of both families."""
    return all(_can_bind(family, host, port) for family, host in _EVERYWHERE)


_EVERYWHERE = ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::"))  # noqa: S104 - bound for a moment, never listens


def _can_bind(family: int, host: str, port: int) -> bool:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            # Connections of an earlier program that linger must not count; a listening socket still does.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        # A machine without IPv6 has no such ports that could be taken.
        return family == socket.AF_INET6 and error.errno in {errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL}
    return True


def _free_port(taken: set[int]) -> int:
    for _ in range(_MAX_CHOICES):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.bind(("0.0.0.0", 0))  # noqa: S104 - as above
            port: int = probe.getsockname()[1]
        if port not in taken and is_free(port):
            return port
    raise ValueError("this node has no free port")
