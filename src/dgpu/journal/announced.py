"""A scheduler as it announces itself to the others, and the state of a member of the engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec


class Announced(msgspec.Struct, frozen=True, kw_only=True):
    """What a scheduler says about itself. A later version may add fields."""

    name: str
    http: str  # its URL; also the name of the row
    version: str
    role: Literal["master", "standby", "stopped"]
    epoch: int
    index: int  # of the last group that it has
    lag_ms: int | None  # None: it has not read the journal yet
    wall_ms: int  # of its own wall clock


class Row(msgspec.Struct, frozen=True, kw_only=True):
    announced: Announced
    revision: int  # grows with every announcement


class MemberHealth(msgspec.Struct, frozen=True, kw_only=True):
    address: str
    version: str = ""
    is_leader: bool = False
    is_learner: bool = False
    has_leader: bool = True
    db_bytes: int = 0
    quota_bytes: int = 0
    alarms: tuple[str, ...] = ()
    trouble: str = ""  # why it does not answer, or cannot serve

    @property
    def answers(self) -> bool:
        return not self.trouble or not self.has_leader

    @property
    def state(self) -> str:
        if not self.answers:
            return "silent"
        if not self.has_leader:
            return "no leader"
        return "learner" if self.is_learner else "leader" if self.is_leader else "follower"

    @property
    def healthy(self) -> bool:
        return self.state in {"leader", "follower"} and not self.alarms


def quota_used(members: Sequence[MemberHealth]) -> float | None:
    """Of the fullest member that answers."""
    return max(
        (member.db_bytes / member.quota_bytes for member in members if member.quota_bytes), default=None
    )


def may_stop(members: Sequence[MemberHealth]) -> int:
    """Members that may stop without stopping the engine. A learner has no vote."""
    voting = [member for member in members if member.state != "learner"]
    healthy = sum(member.healthy for member in voting)
    return max(0, healthy - (len(voting) // 2 + 1))
