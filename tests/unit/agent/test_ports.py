"""Ports of runs: which port of the node a run gets, and which listening socket a connection may reach."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
from collections.abc import Iterator

import pytest

from dgpu.agent.listeners import Listener, listeners, parse, reachable, sockets_of, takers_of
from dgpu.agent.run.task_ports import TaskPorts, is_free
from dgpu.core.model.ids import LeaseId
from dgpu.wire.fields import Unacceptable
from dgpu.wire.port_fields import MAX_PORTS, port_variables, ports

L1, L2 = LeaseId(1), LeaseId(2)
V4, V6 = "0.0.0.0", "::"


@contextlib.contextmanager
def listening(host: str = "127.0.0.1") -> Iterator[tuple[int, int]]:
    """The port and the inode of a socket that listens."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as server:
        yield server.getsockname()[1], os.fstat(server.fileno()).st_ino


def of(address: str, inode: int) -> Listener:
    return Listener(ipaddress.ip_address(address), inode)


def test_a_run_gets_its_port_if_it_is_free_and_another_one_if_not() -> None:
    given = TaskPorts()
    with listening() as (taken, _):
        first = given.give(L1, [taken], as_root=False)[taken]
        assert first != taken
    assert given.give(L1, [taken], as_root=False) == {taken: first}, "a repeated order gets the same port"
    assert is_free(taken)
    assert given.give(L2, [taken], as_root=False) == {taken: taken}


def test_two_runs_never_get_the_same_port() -> None:
    """Neither listens yet: the port still looks free."""
    given = TaskPorts()
    with listening() as (port, _):
        pass
    assert given.give(L1, [port], as_root=False) == {port: port}
    assert given.give(L2, [port], as_root=False)[port] != port
    given.forget(L1)
    assert given.give(LeaseId(3), [port], as_root=False) == {port: port}


def test_a_program_that_is_not_root_gets_no_port_below_1024() -> None:
    assert TaskPorts().give(L1, [81], as_root=False)[81] >= 1024


def test_an_agent_that_starts_again_learns_the_ports_from_the_keeper() -> None:
    given = TaskPorts()
    given.greet(
        [{"lease": 1, "ports": [[8888, 40001]]}, {"lease": 2}, {"lease": 3, "ports": [[1, 2]], "end": {}}]
    )
    assert given.of(L1) == {8888: 40001}
    assert given.of(L2) == {}
    assert given.of(LeaseId(3)) == {}


def test_variables_name_the_first_port_and_each() -> None:
    assert port_variables({8888: 40001, 6006: 6006}) == {
        "DGPU_PORT": "40001",
        "DGPU_PORT_8888": "40001",
        "DGPU_PORT_6006": "6006",
    }
    assert port_variables({}) == {}


@pytest.mark.parametrize(
    "bad", [8888, ["8888"], [0], [65_536], [True], [8888, 8888], list(range(1, MAX_PORTS + 2)), None]
)
def test_ports_that_cannot_be_are_refused(bad: object) -> None:
    with pytest.raises(Unacceptable):
        ports(bad)


def test_the_kernel_names_the_socket_and_its_process() -> None:
    with listening() as (port, inode):
        assert listeners(port) == [of("127.0.0.1", inode)]
        assert sockets_of([os.getpid()], frozenset({inode, 1})) == {inode}
        assert sockets_of([1 << 22], frozenset({inode})) == frozenset()
    assert listeners(port) == []


def test_connections_are_not_listeners() -> None:
    line = "0: 0100007F:22B8 00000000:0000 {} 00000000:00000000 00:00000000 00000000  0  0 77 1"
    assert parse([line.format("0A")], 8888) == [of("127.0.0.1", 77)]
    assert parse([line.format("01")], 8888) == []
    assert parse([line.format("0A")], 8889) == []
    loopback_6 = line.format("0A").replace("0100007F", "00000000" * 3 + "01000000")
    assert parse([loopback_6], 8888) == [of("::1", 77)]
    mapped = line.format("0A").replace("0100007F", "00000000" * 2 + "FFFF0000" + "0100007F")
    assert parse([mapped], 8888) == [of("127.0.0.1", 77)]


@pytest.mark.parametrize(
    ("found", "address"),
    [
        ([("127.0.0.1", 1)], "127.0.0.1"),
        ([(V4, 1)], "127.0.0.1"),
        ([(V6, 1)], "::1"),
        ([("10.0.0.5", 1)], "10.0.0.5"),
        ([("127.0.0.1", 2)], None),
        # A foreign socket at a more exact address gets the connections to it.
        ([(V4, 1), ("127.0.0.1", 2)], None),
        ([(V6, 1), ("::1", 2)], "127.0.0.1"),
        ([(V6, 1), ("::1", 2), ("127.0.0.1", 2)], None),
        ([("127.0.0.1", 1), (V4, 2)], "127.0.0.1"),
        # Two sockets that share an address (SO_REUSEPORT): the kernel chooses one of them.
        ([("127.0.0.1", 1), ("127.0.0.1", 2)], None),
        ([(V4, 1), (V6, 2)], None),
        ([(V4, 1), (V6, 3)], "127.0.0.1"),
    ],
)
def test_a_connection_reaches_only_sockets_of_the_run(
    found: list[tuple[str, int]], address: str | None
) -> None:
    """Inodes 1 and 3 are of the run, 2 is of another program."""
    every = [of(*each) for each in found]
    own = frozenset({1, 3})
    chosen = reachable(every, own)
    assert chosen == (address and ipaddress.ip_address(address))
    if chosen is not None:
        assert takers_of(every, chosen) <= own
