"""Responses that explain and predict: why a task waits, and what if."""

from __future__ import annotations

from typing import Any

import msgspec

from dgpu.wire.answers import Answer, Problem, ReservationAnswer, StatusName, TaskAnswer


class ExpectedStart(Answer, frozen=True, kw_only=True):
    p50: str
    p90: str
    median_error_seconds: float | None = None  # of past predictions; None: none was verified yet
    age_seconds: float = 0.0


class Change(Answer, frozen=True, kw_only=True):
    change: str
    detail: str
    facts: dict[str, Any] = msgspec.field(default_factory=dict)


class NearestNode(Answer, frozen=True, kw_only=True):
    node: str  # the one that lacks least
    lacks: dict[str, int]


class Why(Answer, frozen=True, kw_only=True):
    task_id: str
    status: StatusName
    summary: str = ""  # one sentence
    position: int | None = None
    ahead: list[str] = msgspec.field(default_factory=list)  # the first 100
    ahead_total: int = 0
    blockers: list[dict[str, Any]] = msgspec.field(default_factory=list)  # each with code, detail and numbers
    expected_start: ExpectedStart | None = None
    looked_ahead: bool = True  # False: newer than the latest forecast; ask again after some seconds
    sooner: list[Change] = msgspec.field(default_factory=list)  # each alone would start it now
    sooner_known: bool = True  # False: no result in time; more may exist
    nearest: NearestNode | None = None
    reservation: ReservationAnswer | None = None
    at: str | None = None  # the time in the past that was asked for; None: now
    journal_index: int | None = None  # of the last group at that time
    task: TaskAnswer | None = None  # as it was then; None: it was over


class WhatifStart(Answer, frozen=True, kw_only=True):
    """A task that starts at once only with the change."""

    task_id: str
    nodes: list[str]
    new: bool = False  # one of the submitted


class WhatifDelay(Answer, frozen=True, kw_only=True):
    """A task that would start later, by the forecast."""

    task_id: str
    before: str
    after: str | None  # None: unknown
    seconds: float | None


class WhatifStop(Answer, frozen=True, kw_only=True):
    task_id: str
    node: str
    reason: str


class WhatifWait(Answer, frozen=True, kw_only=True):
    """A submitted task that would not start at once."""

    task_id: str
    expected_start: str | None  # None: unknown
    position: int | None = None
    blockers: list[dict[str, Any]] = msgspec.field(default_factory=list)


class WhatifOthers(Answer, frozen=True, kw_only=True):
    """Tasks of other tenants than the reader's."""

    starts: int = 0
    delays: int = 0
    stops: int = 0


class WhatifAnswer(Answer, frozen=True, kw_only=True):
    starts: list[WhatifStart] = msgspec.field(default_factory=list)
    delays: list[WhatifDelay] = msgspec.field(default_factory=list)
    stops: list[WhatifStop] = msgspec.field(default_factory=list)
    waits: list[WhatifWait] = msgspec.field(default_factory=list)
    others: WhatifOthers | None = None  # None: the reader is of all tenants
    rejected: Problem | None = None
    journal_index: int = 0  # of the state used
    at: str = ""
