"""The section alerts of scheduler.yaml."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from dgpu.entry.config_section import Name, Section

_YEAR = 31_536_000.0
_Seconds = Annotated[float, msgspec.Meta(gt=0, le=_YEAR)]
_SecondsOrNone = Annotated[float, msgspec.Meta(ge=0, le=_YEAR)]  # 0: no limit
_Positive = Annotated[int, msgspec.Meta(ge=1, le=1_000_000_000)]
_Fraction = Annotated[float, msgspec.Meta(ge=0, le=1)]
_Severity = Literal["critical", "warning", "info"]


class AlertRule(Section, frozen=True, kw_only=True):
    enabled: bool = True
    for_seconds: _SecondsOrNone = 0  # the condition must hold this long before the alert fires
    severity: _Severity = "critical"


class TemperatureRule(Section, frozen=True, kw_only=True):
    enabled: bool = True
    limit_c: Annotated[int, msgspec.Meta(ge=1, le=200)] = 85
    for_seconds: _SecondsOrNone = 60
    severity: _Severity = "warning"


class QuotaRule(Section, frozen=True, kw_only=True):
    enabled: bool = True
    percent: _Fraction = 0.9
    for_seconds: _SecondsOrNone = 300
    severity: _Severity = "warning"


class FailureRule(Section, frozen=True, kw_only=True):
    enabled: bool = True
    percent: _Fraction = 0.5
    min_tasks: _Positive = 20
    window_seconds: Annotated[float, msgspec.Meta(ge=60, le=86_400)] = 600
    for_seconds: _SecondsOrNone = 60
    severity: _Severity = "warning"


class WaitRule(Section, frozen=True, kw_only=True):
    enabled: bool = True
    limit_seconds: _Seconds = 3600
    for_seconds: _SecondsOrNone = 60
    severity: _Severity = "warning"


class DiskRule(Section, frozen=True, kw_only=True):
    enabled: bool = True
    free_percent: _Fraction = 0.1
    free_gib: Annotated[float, msgspec.Meta(ge=0, le=1_000_000)] = 20
    for_seconds: _SecondsOrNone = 60
    severity: _Severity = "critical"


class ClockRule(Section, frozen=True, kw_only=True):
    enabled: bool = True
    limit_seconds: Annotated[float, msgspec.Meta(ge=5, le=1_000_000_000)] = 10
    for_seconds: _SecondsOrNone = 0
    severity: _Severity = "warning"


class LagRule(Section, frozen=True, kw_only=True):
    enabled: bool = True
    limit_seconds: Annotated[float, msgspec.Meta(ge=15, le=86_400)] = 30  # rows are written every 5 s
    for_seconds: _SecondsOrNone = 15
    severity: _Severity = "warning"


class ChangeRule(Section, frozen=True, kw_only=True):
    enabled: bool = True
    window_seconds: Annotated[float, msgspec.Meta(ge=10, le=86_400)] = 300
    for_seconds: _SecondsOrNone = 0
    severity: _Severity = "warning"


class AlertRules(Section, frozen=True, kw_only=True):
    agent_offline: AlertRule = AlertRule()
    node_unfit: AlertRule = AlertRule()
    history_behind: AlertRule = AlertRule()
    gpu_error: AlertRule = AlertRule()
    gpu_unrecoverable: AlertRule = AlertRule()
    gpu_temperature: TemperatureRule = TemperatureRule()
    quota_usage: QuotaRule = QuotaRule()
    failure_rate: FailureRule = FailureRule()
    queue_wait: WaitRule = WaitRule()
    worker_down: ChangeRule = ChangeRule()
    disk_full: DiskRule = DiskRule()
    epoch_unknown: AlertRule = AlertRule()
    journal_unavailable: AlertRule = AlertRule(severity="critical")
    clock_skew: ClockRule = ClockRule()
    standby_lagging: LagRule = LagRule()
    master_changed: ChangeRule = ChangeRule()
    engine_unavailable: AlertRule = AlertRule(for_seconds=5)
    engine_member_lost: AlertRule = AlertRule(for_seconds=30)
    engine_quota: QuotaRule = QuotaRule(percent=0.8, for_seconds=0, severity="critical")


class AlertSending(Section, frozen=True, kw_only=True):
    timeout_seconds: Annotated[float, msgspec.Meta(ge=0.1, le=120)] = 10  # per attempt to call a webhook
    attempts: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 10
    retry_seconds: _Seconds = 2  # doubles
    max_retry_seconds: _Seconds = 300
    max_queue: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 100  # messages per target


class WebhookTarget(Section, frozen=True, kw_only=True):
    """Exactly one of url, url_file, url_env; at most one of secret, secret_file, secret_env."""

    name: Name = ""
    url: str = ""
    url_file: str = ""
    url_env: str = ""
    secret: str = ""
    secret_file: str = ""
    secret_env: str = ""


class NotifyTarget(Section, frozen=True, kw_only=True):
    """An apprise URL: mail, Slack and other services."""

    name: Name = ""
    url: str = ""
    url_file: str = ""
    url_env: str = ""


class TaskTarget(NotifyTarget, frozen=True, kw_only=True):
    """A target that tasks may name: a webhook (http, https) or an apprise URL."""

    tenants: tuple[Name, ...] = ()  # empty: all


class Notify(Section, frozen=True, kw_only=True):
    targets: tuple[TaskTarget, ...] = ()
    secrets: Literal["none", "public", "all"] = "public"  # secrets of tenants as targets


class Alerts(Section, frozen=True, kw_only=True):
    enabled: bool = True
    interval_seconds: Annotated[float, msgspec.Meta(ge=0.1, le=3_600)] = 5
    resolve_after_seconds: _SecondsOrNone = 15
    group_seconds: Annotated[float, msgspec.Meta(ge=0, le=3_600)] = 5
    repeat_seconds: _SecondsOrNone = 14_400  # 0: never
    keep_resolved: Annotated[int, msgspec.Meta(ge=0, le=10_000)] = 1_000
    rules: AlertRules = AlertRules()
    webhooks: tuple[WebhookTarget, ...] = ()
    notify: tuple[NotifyTarget, ...] = ()
    sending: AlertSending = AlertSending()
