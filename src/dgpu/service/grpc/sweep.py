"""Closes connections at the agents' port that belong to no agent. gRPC accepts them before the scheduler can check.

gRPC bounds their number, so they cannot use up the open files. But a user of this machine could hold all of them and
keep agents out. When a quarter is in use, the sweep closes connections of other users, and connections of an address
that holds more than half. It finds sockets by their files and only shuts them down: gRPC closes them itself.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections import Counter
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from dgpu.service.rest.peer import End

Ends = tuple[End, End]  # local and remote end

_FILES = "/proc/self/fd"
_INET = frozenset({socket.AF_INET, socket.AF_INET6})


class _File(NamedTuple):
    number: int
    link: str  # socket:[inode]; the number alone may soon mean another socket


class Swept(NamedTuple):
    open: int
    closed: int


class Sweep:
    """Calls block for some milliseconds: use a thread, one call at a time."""

    def __init__(self, port: int, max_connections: int, is_stranger: Callable[[End, End], bool]) -> None:
        self._port = port
        self._max = max_connections
        self._is_stranger = is_stranger
        self._known: dict[_File, Ends | None] = {}  # None: another kind of socket

    def look(self, live_peers: Collection[End]) -> Swept:
        """`live_peers` have an open stream."""
        self._known = {
            file: self._known[file] if file in self._known else self._ends(file.number)
            for file in _socket_files()
        }
        agents = {file: ends for file, ends in self._known.items() if ends is not None}
        if len(agents) <= self._max // 4:
            return Swept(len(agents), 0)
        closing = [
            file for file, ends in agents.items() if ends[1] not in live_peers and self._is_stranger(*ends)
        ]
        closing += self._beyond_share(agents, live_peers, set(closing))
        closed = sum(self._shut(file, agents[file]) for file in closing)
        return Swept(len(agents) - closed, closed)

    def _beyond_share(
        self,
        agents: dict[_File, Ends],
        live_peers: Collection[End],
        closing: Collection[_File],
    ) -> list[_File]:
        by_address = Counter(ends[1][0] for file, ends in agents.items() if file not in closing)
        found = []
        for file, (_, theirs) in reversed(agents.items()):
            if file in closing or theirs in live_peers or by_address[theirs[0]] <= self._max // 2:
                continue
            by_address[theirs[0]] -= 1
            found.append(file)
        return found

    def _ends(self, number: int) -> Ends | None:
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(number)) as found:
            return self._ends_of(found)
        return None

    def _ends_of(self, found: socket.socket) -> Ends | None:
        if found.family not in _INET or found.getsockname()[1] != self._port:
            return None
        return _plain(found.getsockname()), _plain(found.getpeername())

    def _shut(self, file: _File, ends: Ends) -> bool:
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(file.number)) as found:
            if self._ends_of(found) == ends:
                found.shutdown(socket.SHUT_RDWR)
                return True
        return False


def _plain(name: Any) -> End:
    return name[0].removeprefix("::ffff:"), name[1]


def _socket_files() -> list[_File]:
    found = []
    for name in os.listdir(_FILES):  # noqa: PTH208 - names, many of them
        with contextlib.suppress(OSError):  # closed meanwhile
            link = os.readlink(f"{_FILES}/{name}")  # noqa: PTH115 - as above
            if link.startswith("socket:"):
                found.append(_File(int(name), link))
    return sorted(found)
