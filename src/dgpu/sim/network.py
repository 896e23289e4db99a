"""Connections that delay, stall and break. Messages of one connection stay in order, as on TCP; those of two do not.

A partition holds messages back, in one direction or both. If it ends in time, they arrive late, like a retransmission.
Messages are lost only at the end of a connection, which the two sides notice at different times. A faulty proxy
may deliver a message twice.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Protocol

from dgpu.sim.world import World
from dgpu.wire.proto.agent_pb2 import FromAgent, FromAgentOutput, FromScheduler, FromSchedulerOutput

_RETRANSMIT_MS = 200


class End(Protocol):
    def on_message(self, connection: Connection, content: bytes) -> None: ...

    def on_broken(self, connection: Connection) -> None: ...


class Connection:
    def __init__(self, network: Network, name: str, agent: End, scheduler: End) -> None:
        self._network = network
        self.name = name
        self.ends = {"agent": agent, "scheduler": scheduler}
        self.open = {"agent": True, "scheduler": True}
        self._arrives_at = {"agent": 0, "scheduler": 0}
        self._on_the_way: dict[str, collections.deque[tuple[int, Callable[[], None]]]] = {
            side: collections.deque() for side in self.ends
        }

    def send_up(self, message: FromAgent | FromAgentOutput) -> None:
        self._send("scheduler", message.SerializeToString())

    def send_down(self, message: FromScheduler | FromSchedulerOutput) -> None:
        self._send("agent", message.SerializeToString())

    def close(self, side: str) -> None:
        """One side has closed; the other side notices when the network delivers it."""
        if self.open[side]:
            self.open[side] = False
            other = "agent" if side == "scheduler" else "scheduler"
            self._deliver(other, lambda: self._break(other))

    def cut(self) -> None:
        for side in ("agent", "scheduler"):
            self._network.world.after(self._network.delay_ms(), lambda side=side: self._break(side))  # type: ignore[misc]

    def _break(self, side: str) -> None:
        if self.open[side]:
            self.open[side] = False
            self.ends[side].on_broken(self)

    def _send(self, to: str, content: bytes) -> None:
        sender = "agent" if to == "scheduler" else "scheduler"
        if self.open[sender]:
            for _ in range(self._network.copies()):
                self._deliver(to, lambda: self._arrive(to, content))

    def _arrive(self, to: str, content: bytes) -> None:
        if self.open[to]:
            self.ends[to].on_message(self, content)

    def _deliver(self, to: str, action: Callable[[], None]) -> None:
        """After all earlier messages, including those that a partition holds back."""
        world, waiting = self._network.world, self._on_the_way[to]
        self._arrives_at[to] = max(self._arrives_at[to], world.now + self._network.delay_ms())
        waiting.append((self._arrives_at[to], action))
        if len(waiting) == 1:
            world.at(self._arrives_at[to], lambda: self._let_in(to))

    def _let_in(self, to: str) -> None:
        """Delivers the oldest message for this side, then the next one."""
        world, waiting = self._network.world, self._on_the_way[to]
        if self._network.is_cut_off(self.name, to):
            world.after(_RETRANSMIT_MS, lambda: self._let_in(to))
            return
        _, action = waiting.popleft()
        if waiting:
            world.at(waiting[0][0], lambda: self._let_in(to))
        action()


class Network:
    def __init__(self, world: World) -> None:
        self.world = world
        self.connections: list[Connection] = []
        self._cut_off: set[tuple[str, str]] = set()  # node and the side that receives nothing
        self._slow_until = 0
        self._doubles_until = 0

    def connect(self, name: str, agent: End, scheduler: End) -> Connection:
        connection = Connection(self, name, agent, scheduler)
        self.connections = [c for c in self.connections if any(c.open.values())]
        self.connections.append(connection)
        return connection

    def is_cut_off(self, name: str, to: str) -> bool:
        return (name, to) in self._cut_off

    def can_connect(self, name: str) -> bool:
        """A handshake needs both directions."""
        return not any(node == name for node, _ in self._cut_off)

    def cut_off(self, name: str, *sides: str) -> None:
        """The named sides receive nothing; without a name, both."""
        self._cut_off |= {(name, side) for side in sides or ("agent", "scheduler")}

    def heal(self, name: str | None = None) -> None:
        self._cut_off = {pair for pair in self._cut_off if name is not None and pair[0] != name}

    def deliver_twice(self, ms: int) -> None:
        self._doubles_until = self.world.now + ms

    def copies(self) -> int:
        return 2 if self.world.now < self._doubles_until and self.world.chance.random() < 0.3 else 1

    def slow_down(self, ms: int) -> None:
        self._slow_until = self.world.now + ms

    def delay_ms(self) -> int:
        return (
            self.world.between(20, 2_000) if self.world.now < self._slow_until else self.world.between(0, 5)
        )
