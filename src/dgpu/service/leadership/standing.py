"""The part of a scheduler in the cluster, as clients see it. It never waits for the engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, Protocol

from dgpu.journal.engine import EngineHealth
from dgpu.service.leadership.machine import Leadership

if TYPE_CHECKING:
    from dgpu.service.leadership.peers import Peers

PublicRole = Literal["master", "standby"]


class Standing(Protocol):
    read_stale_max_ms: int

    @property
    def role(self) -> PublicRole: ...

    @property
    def is_lone(self) -> bool:
        """No other scheduler can take over."""
        ...

    def lag_ms(self) -> int | None:
        """The time since this scheduler last knew that it had everything. None: it has never known."""
        ...

    @property
    def master(self) -> str:
        """The URL of the scheduler that leads; empty: none is known."""
        ...

    def engine_trouble(self) -> str:
        """Why the engine cannot be used; empty: it can."""
        ...

    def engine_health(self) -> EngineHealth | None:
        """As seen a few seconds ago. None: there is no engine, or it was not asked yet."""
        ...

    @property
    def peers(self) -> Peers | None:
        """None: there is no other scheduler, and no engine."""
        ...


class Lone:
    role: PublicRole = "master"
    is_lone = True
    peers: Peers | None = None
    master = ""
    read_stale_max_ms = 0

    def lag_ms(self) -> int:
        return 0

    def engine_trouble(self) -> str:
        return ""

    def engine_health(self) -> EngineHealth | None:
        return None


class Among:
    """A scheduler among several."""

    is_lone = False

    def __init__(
        self,
        *,
        http: str,
        read_stale_max_ms: int,
        engine_health: Callable[[], EngineHealth | None] = lambda: None,
        peers: Peers | None = None,
    ) -> None:
        self.read_stale_max_ms = read_stale_max_ms
        self.serves = False  # the epoch is durable
        self.peers = peers
        self._http = http
        self._engine_health = engine_health
        self._machine: Leadership | None = None
        self._now_ms: Callable[[], int] = lambda: 0

    def follow(self, machine: Leadership, now_ms: Callable[[], int]) -> None:
        self._machine = machine
        self._now_ms = now_ms

    @property
    def role(self) -> PublicRole:
        return "master" if self.serves else "standby"

    @property
    def master(self) -> str:
        if self.serves:
            return self._http
        leader = self._machine.leader if self._machine is not None else None
        return leader.candidate.http if leader is not None else ""

    def lag_ms(self) -> int | None:
        fresh_at = self._machine.fresh_at_ms if self._machine is not None else None
        return None if fresh_at is None else max(0, self._now_ms() - fresh_at)

    def engine_trouble(self) -> str:
        since = self._machine.silent_since_ms if self._machine is not None else None
        if since is None:
            return (self._machine.unfit or self._machine.copy_trouble) if self._machine is not None else ""
        return f"no majority of the engine has answered for {(self._now_ms() - since) // 1_000} s"

    def engine_health(self) -> EngineHealth | None:
        return self._engine_health()
