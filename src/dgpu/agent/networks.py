"""Networks of processes: a container has its own, with a loopback of its own."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")

OWN = 0  # in place of a pid: the network of this process
_NEW_NET = 0x40000000  # CLONE_NEWNET
_libc = ctypes.CDLL(None, use_errno=True)


def networks_of(pids: Iterable[int]) -> list[int]:
    """One pid for each network that these processes use; OWN for that of this process."""
    known = {_id_of("self"): OWN}
    found: dict[int, int] = {}
    for pid in pids:
        with contextlib.suppress(OSError):  # it has ended
            network = _id_of(pid)
            found.setdefault(network, known.get(network, pid))
    return sorted(found.values())


def in_network(pid: int, call: Callable[[], T]) -> T:
    """The result of the call, made in the network of a process. Sockets stay in the network in which they were made.
    Raises OSError if this process may not enter it.
    """
    if pid == OWN:
        return call()
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            _enter(pid)
            results.append(call())
        except BaseException as error:  # noqa: BLE001 - raised by the caller
            errors.append(error)

    thread = threading.Thread(target=run, name="network")  # ends with the call: no other work may run in it
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def _enter(pid: int) -> None:
    fd = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if _libc.setns(fd, _NEW_NET) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
    finally:
        os.close(fd)


def _id_of(pid: int | str) -> int:
    return os.stat(f"/proc/{pid}/ns/net").st_ino  # noqa: PTH116 - many in a row
