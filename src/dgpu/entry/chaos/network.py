"""A network of its own for the machines of a cluster: one namespace for each, and a router between them.

The namespaces have no names: they disappear with the last process that uses them, and the network of this machine is
not touched. Needs root.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from pathlib import Path
from typing import Literal

_CLONE_NEWNET = 0x40000000
_PROGRAMS = ("ip", "iptables", "nsenter")
_SUBNET = "10.213"
Direction = Literal["in", "out"]


class NetworkFailed(Exception):  # noqa: N818 - it says what happened
    """The text has the reason."""


def why_no_network() -> str:
    """Empty: namespaces can be used."""
    if os.geteuid() != 0:
        return "network faults need root"
    missing = [name for name in _PROGRAMS if shutil.which(name) is None]
    if missing:
        return f"network faults need {' and '.join(missing)} in PATH"
    return ""


class Network:
    """The calling thread is on the router between `open` and `close`, and so are the threads that it starts."""

    def __init__(self) -> None:
        self._outside = -1
        self._spaces: dict[str, int] = {}  # machine → descriptor of its namespace

    def open(self) -> None:
        self._outside = _own_namespace()
        self._inside(None)
        try:
            _run("ip", "link", "set", "lo", "up")
            Path("/proc/sys/net/ipv4/ip_forward").write_text("1", encoding="ascii")
        except (OSError, NetworkFailed):
            self.close()
            raise

    def close(self) -> None:
        if self._outside >= 0:
            self._inside(self._outside)
            os.close(self._outside)
            self._outside = -1
        for space in self._spaces.values():
            os.close(space)
        self._spaces.clear()

    def add(self, machine: str) -> str:
        """Returns the address of the new machine."""
        router = _own_namespace()
        self._inside(None)
        space = self._spaces[machine] = _own_namespace()
        self._inside(router)
        os.close(router)
        number = len(self._spaces)
        place = f"/proc/{os.getpid()}/fd/{space}"
        ours, gateway, address = f"to-{machine}", f"{_SUBNET}.{number}.1", f"{_SUBNET}.{number}.2"
        _run("ip", "link", "add", ours, "type", "veth", "peer", "name", "eth0")
        _run("ip", "link", "set", "eth0", "netns", place)
        _run("ip", "address", "add", f"{gateway}/24", "dev", ours)
        _run("ip", "link", "set", ours, "up")
        inside = self.command(machine)
        _run(*inside, "ip", "link", "set", "lo", "up")
        _run(*inside, "ip", "address", "add", f"{address}/24", "dev", "eth0")
        _run(*inside, "ip", "link", "set", "eth0", "up")
        _run(*inside, "ip", "route", "add", "default", "via", gateway)
        return address

    def command(self, machine: str) -> list[str]:
        """In front of a command that shall run on the machine."""
        return ["nsenter", f"--net=/proc/{os.getpid()}/fd/{self._spaces[machine]}"]

    def drop(self, machine: str, *directions: Direction) -> None:
        """Packets to or from the machine disappear. Their sender notices nothing."""
        self._change("-I", machine, directions)

    def pass_on(self, machine: str, *directions: Direction) -> None:
        self._change("-D", machine, directions)

    def repair(self) -> None:
        """All packets arrive again."""
        _run("iptables", "-F")
        for machine in self._spaces:
            _run(*self.command(machine), "iptables", "-F")

    def _change(self, flag: str, machine: str, directions: tuple[Direction, ...]) -> None:
        for direction in directions:
            if direction == "in":
                _run(*self.command(machine), "iptables", flag, "INPUT", "-i", "eth0", "-j", "DROP")
            else:
                for chain in ("FORWARD", "INPUT"):
                    _run("iptables", flag, chain, "-i", f"to-{machine}", "-j", "DROP")

    def _inside(self, space: int | None) -> None:
        """Moves the calling thread into a namespace; None: a new one."""
        libc = ctypes.CDLL(None, use_errno=True)
        failed = libc.unshare(_CLONE_NEWNET) if space is None else libc.setns(space, _CLONE_NEWNET)
        if failed:
            error = ctypes.get_errno()
            raise NetworkFailed(f"No network namespace can be used: {os.strerror(error)}.")


def _own_namespace() -> int:
    # Not of /proc/self: that would be the namespace of the main thread.
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def _run(*command: str) -> None:
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30, check=False
    )
    if done.returncode:
        raise NetworkFailed(f"{' '.join(command)} failed: {done.stderr.strip()[:300]}")
