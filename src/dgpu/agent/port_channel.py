"""A channel that is a TCP connection to a program of a run.

The agent may reach services of the node and of other users, and runs as root on many nodes. So it connects only to
sockets that a process of the run has open, and looks at them again when it is connected.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from dgpu.agent.channel_end import ChannelEnd, Send
from dgpu.agent.listeners import Address, Listener, listeners, reachable, sockets_of, takers_of
from dgpu.agent.networks import OWN, in_network, networks_of
from dgpu.core.model.ids import LeaseId, NodeId
from dgpu.wire.proto import agent_pb2 as pb

_READ_BYTES = 64 * 1024
_WAIT_SECONDS = 5.0  # for a program that is about to listen
_LOOK_SECONDS = 0.2


class RunPorts(Protocol):
    """A part of the runner."""

    def ports_of(self, node_id: NodeId, lease_id: LeaseId) -> Mapping[int, int] | None:
        """The port of the node for each port of a run; None: the node has no such run."""

    def owners(self) -> Mapping[int, LeaseId | None]:
        """All processes of all tasks with their lease. May block: use a thread."""


class Found(NamedTuple):
    address: Address
    port: int
    takers: frozenset[int]  # inodes of the sockets that get connections to this address
    pid: int = OWN  # of the network, as in `networks`


class PortRefused(Exception):  # noqa: N818 - the name states the failure
    """`code`: run_ended, port_closed (nothing listens), port_of_other, port_not_reachable."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code


class PortChannel(ChannelEnd):
    def __init__(
        self, channel_id: int, asked: pb.OpenChannel, node_id: NodeId, send: Send, ports: RunPorts
    ) -> None:
        self._find = lambda: _find(ports, node_id, LeaseId(asked.lease_id), asked.port.port)
        self._input: asyncio.Queue[bytes] = asyncio.Queue()  # an empty piece: no more input
        super().__init__(channel_id, asked.credit, send)

    def _put(self, given: bytes) -> None:
        if given:
            self._input.put_nowait(given)

    def end_input(self) -> None:
        self._input.put_nowait(b"")

    async def _serve(self) -> pb.ChannelClosed | None:
        try:
            reader, writer = await _connect(self._find)
        except PortRefused as error:
            return pb.ChannelClosed(reason=error.code, detail=str(error))
        writing = asyncio.get_running_loop().create_task(self._write(writer))
        try:
            self._opened()
            while received := await reader.read(_READ_BYTES):
                await self._give(received)
        finally:
            writing.cancel()
            writer.close()
        return pb.ChannelClosed(reason="ended")

    async def _write(self, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):  # the reader notices
            while piece := await self._input.get():
                writer.write(piece)
                await writer.drain()
                self._taken(len(piece))
            writer.write_eof()


async def _connect(find: Callable[[], Found]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Raises PortRefused and OSError."""
    deadline = asyncio.get_running_loop().time() + _WAIT_SECONDS
    while True:
        try:
            found = await asyncio.to_thread(find)
            connected = await asyncio.to_thread(in_network, found.pid, lambda: _dial(found))  # noqa: B023 - awaited
        except PortRefused as error:
            if error.code != "port_closed" or asyncio.get_running_loop().time() > deadline:
                raise
        except OSError as error:  # it has just ended
            if asyncio.get_running_loop().time() > deadline:
                raise PortRefused(
                    "port_closed", f"the program took no connection: {error.strerror}"
                ) from None
        else:
            if connected is not None:
                return await asyncio.open_connection(sock=connected)
        await asyncio.sleep(_LOOK_SECONDS)


def _dial(found: Found) -> socket.socket | None:
    """None: another program has taken the port in between. Raises OSError."""
    connected = socket.create_connection((str(found.address), found.port), timeout=_WAIT_SECONDS)
    if takers_of(listeners(found.port), found.address) <= found.takers:
        connected.setblocking(False)
        return connected
    connected.close()
    return None


def _find(ports: RunPorts, node_id: NodeId, lease_id: LeaseId, asked: int) -> Found:
    """Reads /proc: for a thread. Raises PortRefused."""
    given = ports.ports_of(node_id, lease_id)
    if given is None:
        raise PortRefused("run_ended", "the run has ended")
    port = given.get(asked, asked)
    pids = [pid for pid, owner in ports.owners().items() if owner == lease_id]
    is_of_other = False
    for network in networks_of(pids):
        found = _listeners_in(network, port)
        own = sockets_of(pids, frozenset(each.inode for each in found))
        address = reachable(found, own)
        if address is not None:
            return Found(address, port, takers_of(found, address), network)
        is_of_other = is_of_other or bool(found)
    if is_of_other:
        raise PortRefused(
            "port_of_other",
            f"port {port} of node {node_id} belongs to another program, not to the task; submit with --port {asked} "
            "and listen on $DGPU_PORT",
        )
    also = "" if port == asked else f" (for the program: port {port}, from $DGPU_PORT_{asked})"
    raise PortRefused("port_closed", f"nothing listens on port {asked}{also}")


def _listeners_in(network: int, port: int) -> list[Listener]:
    try:
        return in_network(network, lambda: listeners(port))
    except PermissionError:
        why = "the container has a network of its own, which only an agent that is root can reach"
        raise PortRefused("port_not_reachable", why) from None
    except OSError:  # it has just ended
        return []
