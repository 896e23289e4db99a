"""Responses of the calls on alerts, and the body of webhooks."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

from dgpu.wire.answers import Answer

AlertStateName: TypeAlias = Literal["pending", "firing", "resolved"]
Severity: TypeAlias = Literal["critical", "warning", "info"]


class AlertAnswer(Answer, frozen=True, kw_only=True):
    """One per rule and subject."""

    id: str
    rule: str
    subject: str  # a node, a GPU, a pool, a tenant; depends on the rule
    state: AlertStateName
    severity: Severity
    summary: str  # one sentence
    facts: dict[str, Any] = msgspec.field(default_factory=dict)
    pending_since: str
    firing_since: str | None = None
    resolved_at: str | None = None
    flaps: int = 0  # how often it returned soon after it was resolved
    acknowledged_at: str | None = None
    comment: str = ""  # of the acknowledgement
    silenced_until: str | None = None


class AlertList(Answer, frozen=True, kw_only=True):
    total: int  # that match the filter
    pending: int
    firing: int
    resolved: int
    dropped: int = 0  # current conditions without an alert, beyond the limit
    alerts: list[AlertAnswer]


class AlertCounts(Answer, frozen=True, kw_only=True):
    pending: int
    firing: int
    resolved: int


class SilenceAnswer(Answer, frozen=True, kw_only=True):
    id: str
    rule: str  # * is every rule
    subject: str | None = None  # None: every subject
    created_at: str
    until: str
    comment: str = ""
    active: bool = True  # False: it has ended


class SilenceList(Answer, frozen=True, kw_only=True):
    total: int
    silences: list[SilenceAnswer]


class TargetAnswer(Answer, frozen=True, kw_only=True):
    """Counted since the start of the scheduler."""

    name: str
    kind: str  # webhook | apprise
    address: str  # without possible secrets
    queued: int = 0
    sent: int = 0
    failed: int = 0  # attempts
    dropped: int = 0  # messages
    last_error: str = ""


class TargetList(Answer, frozen=True, kw_only=True):
    targets: list[TargetAnswer]


class TestedTarget(Answer, frozen=True, kw_only=True):
    name: str
    kind: str
    address: str
    ok: bool
    detail: str
    seconds: float


class TestedTargets(Answer, frozen=True, kw_only=True):
    targets: list[TestedTarget]


class WebhookBody(Answer, frozen=True, kw_only=True):
    """The body of a webhook."""

    version: int = 1
    type: str  # alert | test
    state: str  # firing | resolved | test
    reminder: bool = False
    rule: str
    severity: str
    count: int
    summary: str
    at: str
    alerts: list[AlertAnswer] = msgspec.field(default_factory=list)  # at most 50
