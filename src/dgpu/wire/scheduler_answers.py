"""Responses about the schedulers of a cluster and the engine of their journal."""

from __future__ import annotations

import msgspec

from dgpu.wire.answers import Answer


class SchedulerAnswer(Answer, frozen=True, kw_only=True):
    name: str
    url: str = ""
    role: str  # master | standby | stopped
    me: bool = False  # the scheduler that answers
    healthy: bool = True
    trouble: str = ""  # why it could not take over well now
    lag_ms: int | None = 0  # time since it last knew that it had everything; None: it has never known
    epoch: int = 0
    journal_index: int = 0
    version: str = ""
    last_seen_seconds: float = 0


class MemberAnswer(Answer, frozen=True, kw_only=True):
    address: str
    state: str  # leader | follower | learner | no leader | silent
    healthy: bool
    version: str = ""
    db_bytes: int = 0
    quota_bytes: int = 0
    trouble: str = ""


class SchedulerList(Answer, frozen=True, kw_only=True):
    schedulers: list[SchedulerAnswer] = msgspec.field(default_factory=list)
    members: list[MemberAnswer] = msgspec.field(default_factory=list)  # of the engine; empty: there is none
    master: str = ""  # URL of the scheduler that leads; empty: this one is alone, or none is known
    engine: str = ""  # why the engine cannot be used; empty: it can, or there is none
    quota_used: float | None = None  # part of the engine's quota that its fullest member uses
    members_may_stop: int | None = None  # members that may stop without stopping the engine; None: no engine
