"""What the machine of alerts keeps and gives out."""

from __future__ import annotations

import enum
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec

from dgpu.service.alerts.rules import RuleSet
from dgpu.wire.alert_answers import Severity

Key: TypeAlias = tuple[str, str]  # rule, subject
ANY = "*"  # a silence of every rule

MAX_OPEN = 5_000
MAX_SILENCES = 1_000
MAX_ENDED = 100  # silences that are over
MAX_IN_A_MESSAGE = 50


class AlertState(enum.StrEnum):
    PENDING = "pending"  # the condition holds, but not yet for long enough
    FIRING = "firing"
    RESOLVED = "resolved"


class Alert(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    number: int
    rule: str
    subject: str
    severity: Severity
    state: AlertState
    summary: str
    facts: dict[str, Any] = {}
    pending_since: int
    firing_since: int = 0
    clear_since: int = 0  # firing: since when the condition no longer holds
    resolved_at: int = 0
    flaps: int = 0
    acknowledged_at: int = 0
    comment: str = ""
    told: bool = False  # the targets know that it fires
    told_at: int = 0

    @property
    def key(self) -> Key:
        return (self.rule, self.subject)


class Silence(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    number: int
    rule: str  # or ANY
    subject: str | None = None  # None: of every subject
    created_at: int
    until: int
    comment: str = ""


ChangeName: TypeAlias = Literal[
    "pending", "firing", "resolved", "withdrawn", "acknowledged", "silenced", "unsilenced"
]


class Change(NamedTuple):
    name: ChangeName
    alert: Alert


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What targets are told: alerts of one rule that fire or are over. A storm is one message with a count."""

    state: Literal["firing", "resolved", "test"]
    rule: str
    severity: Severity
    at: int
    count: int
    alerts: tuple[Alert, ...] = ()  # the first MAX_IN_A_MESSAGE
    reminder: bool = False

    @property
    def summary(self) -> str:
        if self.state == "test":
            return "A test of dgpu's alerts. Nothing is wrong."
        word = "resolved" if self.state == "resolved" else "still firing" if self.reminder else "firing"
        if self.count == 1:
            return f"{word}: {self.alerts[0].summary}"
        shown = ", ".join(alert.subject for alert in self.alerts[:5])
        more = f" and {self.count - 5:,} more" if self.count > 5 else ""
        return f"{word}: {self.count:,} alerts of {self.rule}: {shown}{more}."


class AlertTimes(msgspec.Struct, frozen=True, kw_only=True):
    """How patient the machine is."""

    resolve_after_ms: int = 15_000  # without its condition; doubles with every flap
    most_resolve_after_ms: int = 900_000
    reopen_ms: int = 600_000  # what comes back sooner is the same alert, flapping
    group_wait_ms: int = 5_000
    repeat_ms: int = 14_400_000  # 0: a firing alert is told once
    keep_resolved: int = 1_000


class MachineOptions(msgspec.Struct, frozen=True, kw_only=True):
    rules: RuleSet = RuleSet()
    times: AlertTimes = AlertTimes()


class KeptAlerts(msgspec.Struct, frozen=True, kw_only=True):
    """All that outlives a restart. What was pending starts to count anew: nobody knows what held meanwhile."""

    next_alert: int = 1
    next_silence: int = 1
    firing: tuple[Alert, ...] = ()
    resolved: tuple[Alert, ...] = ()  # oldest first
    silences: tuple[Silence, ...] = ()
    ended: tuple[Silence, ...] = ()  # the last silences that are over, oldest first
