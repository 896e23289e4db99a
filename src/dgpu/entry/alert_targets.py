"""Targets of alerts: addresses from the configuration, from files or from the environment. They are never shown."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from dgpu.entry.alert_types import Alerts, AlertSending, NotifyTarget, WebhookTarget
from dgpu.entry.config_problem import Problem

if TYPE_CHECKING:
    from dgpu.service.alerts.options import AlertOptions
    from dgpu.service.alerts.outbox import SendingRules
    from dgpu.service.alerts.rules import RuleSet
    from dgpu.service.alerts.targets import Target

MAX_TARGETS = 20  # of each kind
_MAX_BYTES = 65_536


def check_alerts(alerts: Alerts) -> Iterator[Problem]:
    sending = alerts.sending
    if sending.max_retry_seconds < sending.retry_seconds:
        yield Problem("alerts.sending.max_retry_seconds", "is less than alerts.sending.retry_seconds")
    problems: list[Problem] = []
    targets_of(alerts, problems.append)
    yield from problems


def targets_of(alerts: Alerts, refuse: Callable[[Problem], None]) -> tuple[Target, ...]:
    if not alerts.webhooks and not alerts.notify:
        return ()  # without targets, nothing is imported
    from dgpu.service.alerts.senders import apprise_refusal
    from dgpu.service.alerts.targets import webhook_refusal

    found: list[Target] = []
    kinds: tuple[
        tuple[
            str,
            Literal["webhook", "apprise"],
            tuple[WebhookTarget | NotifyTarget, ...],
            Callable[[str], str | None],
        ],
        ...,
    ] = (
        ("alerts.webhooks", "webhook", alerts.webhooks, webhook_refusal),
        ("alerts.notify", "apprise", alerts.notify, apprise_refusal),
    )
    for key, kind, listed, refusal in kinds:
        if len(listed) > MAX_TARGETS:
            refuse(Problem(key, f"at most {MAX_TARGETS} can be listed"))
            continue
        for number, written in enumerate(listed):
            target = _target(f"{key}[{number}]", kind, number, written, refusal, refuse)
            if target is not None and any(target.name == other.name for other in found):
                refuse(Problem(f"{key}[{number}].name", f"{target.name!r} is listed twice"))
            elif target is not None:
                found.append(target)
    return tuple(found)


def _target(
    path: str,
    kind: Literal["webhook", "apprise"],
    number: int,
    written: WebhookTarget | NotifyTarget,
    refusal: Callable[[str], str | None],
    refuse: Callable[[Problem], None],
) -> Target | None:
    from dgpu.service.alerts.targets import Target

    url = written_value(path, "url", written, refuse, needed=True)
    secret = written_value(path, "secret", written, refuse, needed=False) if kind == "webhook" else ""
    if url is None or secret is None:
        return None
    why_not = refusal(url)
    if why_not is not None:
        source = next(name for name in ("url", "url_file", "url_env") if getattr(written, name))
        refuse(Problem(f"{path}.{source}", why_not))
        return None
    name = written.name or f"{'webhook' if kind == 'webhook' else 'notify'}-{number + 1}"
    return Target(name=name, kind=kind, url=url, secret=secret)


def written_value(
    path: str,
    name: str,
    written: WebhookTarget | NotifyTarget,
    refuse: Callable[[Problem], None],
    *,
    needed: bool,
) -> str | None:
    """The value itself, the content of its file, or its environment variable. None: an error was reported."""
    names = (name, f"{name}_file", f"{name}_env")
    given = [each for each in names if getattr(written, each)]
    if not given and not needed:
        return ""
    if len(given) != 1:
        refuse(Problem(f"{path}.{name}", f"expected one of {', '.join(names)}, got {len(given)} of them"))
        return None
    (source,) = given
    said: str = getattr(written, source)
    value, trouble = said, ""
    if source.endswith("_file"):
        value, trouble = _read(Path(said).expanduser())
    elif source.endswith("_env"):
        value = os.environ.get(said, "")
        trouble = "" if value.strip() else f"the environment has no variable {said}"
    if trouble or not value.strip():
        refuse(Problem(f"{path}.{source}", trouble or "is empty"))
        return None
    return value.strip()


def _read(path: Path) -> tuple[str, str]:
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except OSError as error:
        return "", f"{str(path)!r} cannot be read: {error.strerror}"
    if len(content) > _MAX_BYTES:
        return "", f"{str(path)!r} is larger than {_MAX_BYTES} bytes"
    try:
        return content.decode(), ""
    except UnicodeDecodeError:
        return "", f"{str(path)!r} is not UTF-8 text"


def alert_options(alerts: Alerts) -> AlertOptions | None:
    """For a configuration that was checked."""
    if not alerts.enabled:
        return None
    from dgpu.service.alerts.options import AlertOptions
    from dgpu.service.alerts.values import AlertTimes, MachineOptions

    return AlertOptions(
        interval_ms=_ms(alerts.interval_seconds),
        machine=MachineOptions(
            rules=_rules(alerts),
            times=AlertTimes(
                resolve_after_ms=_ms(alerts.resolve_after_seconds),
                group_wait_ms=_ms(alerts.group_seconds),
                repeat_ms=_ms(alerts.repeat_seconds),
                keep_resolved=alerts.keep_resolved,
            ),
        ),
        sending=sending_rules(alerts.sending),
        targets=targets_of(alerts, lambda _: None),
    )


def sending_rules(sending: AlertSending) -> SendingRules:
    from dgpu.service.alerts.outbox import SendingRules

    return SendingRules(
        timeout_ms=_ms(sending.timeout_seconds),
        attempts=sending.attempts,
        retry_ms=_ms(sending.retry_seconds),
        max_retry_ms=_ms(sending.max_retry_seconds),
        queue=sending.max_queue,
    )


def _rules(alerts: Alerts) -> RuleSet:
    from dgpu.service.alerts import rules as r

    written = alerts.rules

    def plain(section: object) -> dict[str, object]:
        return {
            "enabled": getattr(section, "enabled"),  # noqa: B009 - every rule's section has these three
            "for_ms": _ms(getattr(section, "for_seconds")),  # noqa: B009
            "severity": getattr(section, "severity"),  # noqa: B009
        }

    hot, quota, failures = written.gpu_temperature, written.quota_usage, written.failure_rate
    waiting, disk, clock = written.queue_wait, written.disk_full, written.clock_skew
    lagging, changed, engine = written.standby_lagging, written.master_changed, written.engine_quota
    workers = written.worker_down
    return r.RuleSet(
        agent_offline=r.Rule(**plain(written.agent_offline)),  # type: ignore[arg-type]
        node_unfit=r.Rule(**plain(written.node_unfit)),  # type: ignore[arg-type]
        history_behind=r.Rule(**plain(written.history_behind)),  # type: ignore[arg-type]
        gpu_error=r.Rule(**plain(written.gpu_error)),  # type: ignore[arg-type]
        gpu_unrecoverable=r.Rule(**plain(written.gpu_unrecoverable)),  # type: ignore[arg-type]
        gpu_temperature=r.TemperatureRule(**plain(hot), limit_c=hot.limit_c),  # type: ignore[arg-type]
        quota_usage=r.QuotaRule(**plain(quota), percent=quota.percent),  # type: ignore[arg-type]
        failure_rate=r.FailureRule(
            **plain(failures),  # type: ignore[arg-type]
            percent=failures.percent,
            least_tasks=failures.min_tasks,
            window_ms=_ms(failures.window_seconds),
        ),
        queue_wait=r.WaitRule(**plain(waiting), limit_ms=_ms(waiting.limit_seconds)),  # type: ignore[arg-type]
        worker_down=r.ChangeRule(**plain(workers), window_ms=_ms(workers.window_seconds)),  # type: ignore[arg-type]
        disk_full=r.DiskRule(
            **plain(disk),  # type: ignore[arg-type]
            free_percent=disk.free_percent,
            free_bytes=round(disk.free_gib * (1 << 30)),
        ),
        epoch_unknown=r.Rule(**plain(written.epoch_unknown)),  # type: ignore[arg-type]
        journal_unavailable=r.Rule(**plain(written.journal_unavailable)),  # type: ignore[arg-type]
        clock_skew=r.ClockRule(**plain(clock), limit_ms=_ms(clock.limit_seconds)),  # type: ignore[arg-type]
        standby_lagging=r.LagRule(**plain(lagging), limit_ms=_ms(lagging.limit_seconds)),  # type: ignore[arg-type]
        master_changed=r.ChangeRule(**plain(changed), window_ms=_ms(changed.window_seconds)),  # type: ignore[arg-type]
        engine_unavailable=r.Rule(**plain(written.engine_unavailable)),  # type: ignore[arg-type]
        engine_member_lost=r.Rule(**plain(written.engine_member_lost)),  # type: ignore[arg-type]
        engine_quota=r.QuotaRule(**plain(engine), percent=engine.percent),  # type: ignore[arg-type]
    )


def _ms(seconds: float) -> int:
    return max(round(seconds * 1000), 1) if seconds else 0
