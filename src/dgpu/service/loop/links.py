"""The scheduler's end of one agent's stream, as the runtime uses it."""

from __future__ import annotations

from typing import Protocol

from dgpu.wire.proto.agent_pb2 import FromScheduler


class AgentLink(Protocol):
    def send(self, message: FromScheduler) -> None: ...

    def hang_up(self, reason: str, *, fault: bool) -> None: ...

    @property
    def unsent(self) -> int: ...
