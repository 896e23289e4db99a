"""Values that the alert machine stores and returns."""

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
MAX_ENDED = 100  # silences that have ended
MAX_IN_A_MESSAGE = 50


class AlertState(enum.StrEnum):
    PENDING = "pending"  # the condition holds, but not long enough yet
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
    clear_since: int = 0  # firing: the time since when the condition no longer holds
    resolved_at: int = 0
    flaps: int = 0
    acknowledged_at: int = 0
    comment: str = ""
    told: bool = False  # the targets were told that it fires
    told_at: int = 0
    tenant: str = ""  # see Finding
    plain: str = ""

    @property
    def key(self) -> Key:
        return (self.rule, self.subject)


class Silence(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    number: int
    rule: str  # or ANY
    subject: str | None = None  # None: every subject
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
    """A message to targets: alerts of one rule that fire or have ended. A storm is one message with a count."""

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
            return "A test of dgpu's alerts. There is no problem."
        word = "resolved" if self.state == "resolved" else "still firing" if self.reminder else "firing"
        if self.count == 1:
            return f"{word}: {self.alerts[0].summary}"
        shown = ", ".join(alert.subject for alert in self.alerts[:5])
        more = f" and {self.count - 5:,} more" if self.count > 5 else ""
        return f"{word}: {self.count:,} alerts of {self.rule}: {shown}{more}."


class AlertTimes(msgspec.Struct, frozen=True, kw_only=True):
    """The waiting times of the machine."""

    resolve_after_ms: int = 15_000  # without its condition; doubles with every flap
    max_resolve_after_ms: int = 900_000
    reopen_ms: int = 600_000  # an alert that returns sooner is the same alert, flapping
    group_wait_ms: int = 5_000
    repeat_ms: int = 14_400_000  # 0: a firing alert is reported once
    keep_resolved: int = 1_000


class MachineOptions(msgspec.Struct, frozen=True, kw_only=True):
    rules: RuleSet = RuleSet()
    times: AlertTimes = AlertTimes()


class KeptAlerts(msgspec.Struct, frozen=True, kw_only=True):
    """The part that survives a restart. Pending alerts start to count again: the time in between is unknown."""

    next_alert: int = 1
    next_silence: int = 1
    firing: tuple[Alert, ...] = ()
    resolved: tuple[Alert, ...] = ()  # oldest first
    silences: tuple[Silence, ...] = ()
    ended: tuple[Silence, ...] = ()  # the last ended silences, oldest first
