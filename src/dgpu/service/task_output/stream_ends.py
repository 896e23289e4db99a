"""The ends of output streams: the scheduler's state, an agent, and a reader."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, TypeVar

from dgpu.core.model.ids import NodeId
from dgpu.core.state import ClusterState
from dgpu.service.machine.outputs import CommittedGroup
from dgpu.wire.proto import agent_pb2 as pb

T = TypeVar("T")


class StateReader(Protocol):
    """The part of the runtime that this module uses."""

    async def read(self, look: Callable[[ClusterState], T]) -> T: ...

    def subscribe(self, callback: Callable[[CommittedGroup], None]) -> Callable[[], None]: ...

    def session_of(self, node_id: NodeId) -> str: ...

    def now_ms(self) -> int: ...


class OutputLink(Protocol):
    """The scheduler's end of one agent's output stream."""

    def send(self, message: pb.FromSchedulerOutput) -> None: ...

    def hang_up(self, reason: str, *, fault: bool) -> None: ...


class WaitingReader:
    """The unread pieces of one reader."""

    __slots__ = ("arrived", "ended", "error", "paused", "pieces")

    def __init__(self) -> None:
        self.pieces: list[tuple[int, bytes]] = []
        self.ended = False
        self.paused = False
        self.error = ""
        self.arrived = asyncio.Event()
