"""The rules of alerts, as pure functions of readings: each finds the subjects for which its condition holds now."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from dgpu.core.model.health import Health
from dgpu.service.alerts.shared_rules import (
    Found,
    SharedReadings,
    changed,
    filling,
    lagging,
    lost_members,
    without_majority,
)
from dgpu.service.alerts.worker_rules import FoundOfTenant, WorkerTrouble, troubled
from dgpu.wire.alert_answers import Severity
from dgpu.wire.answers import instant
from dgpu.wire.wall_time import words_of_ms

_GIB = 1 << 30


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    enabled: bool = True
    for_ms: int = 0  # the condition must hold this long before the alert fires
    severity: Severity = "warning"


class TemperatureRule(Rule, frozen=True, kw_only=True):
    limit_c: int = 85


class QuotaRule(Rule, frozen=True, kw_only=True):
    percent: float = 0.9


class FailureRule(Rule, frozen=True, kw_only=True):
    percent: float = 0.5
    least_tasks: int = 20  # ended within the window; fewer are no evidence
    window_ms: int = 600_000


class WaitRule(Rule, frozen=True, kw_only=True):
    limit_ms: int = 3_600_000


class DiskRule(Rule, frozen=True, kw_only=True):
    """Both limits must be reached: a tenth of a large disk is still a lot."""

    free_percent: float = 0.1
    free_bytes: int = 20 << 30


class ClockRule(Rule, frozen=True, kw_only=True):
    limit_ms: int = 10_000


class LagRule(Rule, frozen=True, kw_only=True):
    limit_ms: int = 30_000


class ChangeRule(Rule, frozen=True, kw_only=True):
    window_ms: int = 300_000  # how long a change of the master, or the loss of a worker, is told


class RuleSet(msgspec.Struct, frozen=True, kw_only=True):
    """The name of the field is the name of the rule."""

    agent_offline: Rule = Rule(severity="critical")
    node_unfit: Rule = Rule(severity="critical")
    history_behind: Rule = Rule(severity="critical")
    gpu_error: Rule = Rule(severity="critical")
    gpu_unrecoverable: Rule = Rule(severity="critical")
    gpu_temperature: TemperatureRule = TemperatureRule(for_ms=60_000)
    quota_usage: QuotaRule = QuotaRule(for_ms=300_000)
    failure_rate: FailureRule = FailureRule(for_ms=60_000)
    queue_wait: WaitRule = WaitRule(for_ms=60_000)
    worker_down: ChangeRule = ChangeRule()
    disk_full: DiskRule = DiskRule(for_ms=60_000, severity="critical")
    epoch_unknown: Rule = Rule(severity="critical")
    journal_unavailable: Rule = Rule(severity="critical")
    clock_skew: ClockRule = ClockRule()
    standby_lagging: LagRule = LagRule(for_ms=15_000)
    master_changed: ChangeRule = ChangeRule()
    engine_unavailable: Rule = Rule(for_ms=5_000, severity="critical")
    engine_member_lost: Rule = Rule(for_ms=30_000, severity="critical")
    engine_quota: QuotaRule = QuotaRule(percent=0.8, severity="critical")


RULE_NAMES: tuple[str, ...] = RuleSet.__struct_fields__


class OfflineNode(NamedTuple):
    node: str
    since: int
    tasks: int
    draining: bool


class UnfitNode(NamedTuple):
    """A node that takes no tasks because it reported itself unfit: its keeper hangs, or its disk is full."""

    node: str
    reason: str
    tasks: int


class Unsaved(NamedTuple):
    """Finished tasks that are in memory beyond the usual number because the history does not contain them yet."""

    tasks: int
    limit: int


class SickGpu(NamedTuple):
    gpu: str
    node: str
    state: Health
    since: int
    cause: str
    evidence: str


class HotGpu(NamedTuple):
    gpu: str
    node: str
    temperature_c: int


class Use(NamedTuple):
    """The use of a pool or a tenant, in thousandths of a GPU."""

    holder: str
    used_milli: int
    limit_milli: int
    tenant: str = ""  # empty: of a pool


class Oldest(NamedTuple):
    """The longest waiting task of a pool."""

    pool: str
    task: str
    since: int
    tenant: str = ""


class OffClock(NamedTuple):
    """A wall clock that differs from the scheduler's time."""

    subject: str  # a node, or the scheduler
    ahead_ms: int


class Readings(NamedTuple):
    """All inputs of the rules. `hot` contains only GPUs above the limit: a cluster has thousands of cool ones."""

    at: int
    offline: tuple[OfflineNode, ...] = ()
    unfit: tuple[UnfitNode, ...] = ()
    unsaved: Unsaved | None = None
    sick: tuple[SickGpu, ...] = ()
    hot: tuple[HotGpu, ...] = ()
    uses: tuple[Use, ...] = ()
    ended: int = 0  # tasks that ended by themselves within the window
    failed: int = 0
    oldest: tuple[Oldest, ...] = ()
    troubles: tuple[WorkerTrouble, ...] = ()  # of warm workers, within the window
    disk_free_bytes: int | None = None  # None: still unknown
    disk_total_bytes: int = 0
    journal_full: bool = False
    epoch_unknown: str = ""  # why nodes of a lost epoch are refused
    journal_trouble: str = ""  # why new tasks are refused although the disk is not full
    journal_repaired: str = ""  # files that were recently found deleted or replaced, and restored
    clocks: tuple[OffClock, ...] = ()
    shared: SharedReadings = SharedReadings()


class Finding(NamedTuple):
    """A condition that holds now. One alert per rule and subject."""

    rule: str
    subject: str
    summary: str
    facts: Mapping[str, Any]
    tenant: str = ""  # the only tenant that may read the summary; empty: see `plain`
    plain: str = (
        ""  # the summary for other tenants; empty: they do not get the alert, unless the rule is public
    )


def findings(readings: Readings, rules: RuleSet) -> list[Finding]:
    found: list[Finding] = []
    for name, find in _FINDERS.items():
        rule = getattr(rules, name)
        if rule.enabled:
            found += find(readings, rule, name)
    return found


def _offline(readings: Readings, _rule: Rule, name: str) -> Iterator[Finding]:
    for node, since, tasks, draining in readings.offline:
        facts = {"node": node, "offline_since": instant(since), "tasks": tasks, "draining": draining}
        held = f"; {tasks} of its tasks wait for it" if tasks else ""
        yield Finding(name, node, f"Node {node} has been offline since {instant(since)}{held}.", facts)


def _unfit(readings: Readings, _rule: Rule, name: str) -> Iterator[Finding]:
    for node, reason, tasks in readings.unfit:
        facts = {"node": node, "reason": reason, "tasks": tasks}
        held = f"; {tasks} of its tasks may be stuck" if tasks else ""
        yield Finding(name, node, f"Node {node} takes no tasks: {reason}{held}.", facts)


def _behind(readings: Readings, _rule: Rule, name: str) -> Iterator[Finding]:
    if readings.unsaved is not None:
        tasks, limit = readings.unsaved
        text = (
            f"The history does not advance: {tasks:,} finished tasks are in memory and in the journal only. With "
            f"{limit:,} no more tasks are accepted."
        )
        yield Finding(name, "cluster", text, {"tasks": tasks, "limit": limit})


def _sick(readings: Readings, _rule: Rule, name: str) -> Iterator[Finding]:
    for card in readings.sick:
        if (card.state is Health.OUT) is not (name == "gpu_unrecoverable"):
            continue
        facts = {
            "node": card.node,
            "gpu": card.gpu,
            "health": card.state.value,
            "cause": card.cause,
            "evidence": card.evidence,
            "since": instant(card.since),
        }
        state = "needs an operator" if name == "gpu_unrecoverable" else "is out of service"
        why = f"{card.cause}: {card.evidence}" if card.evidence else card.cause
        text = f"GPU {card.gpu} on {card.node} {state} ({why})."
        if name == "gpu_unrecoverable":
            text += f" Then: dgpu gpus recover {card.gpu}"
        yield Finding(
            name, card.gpu, text, facts, plain=f"GPU {card.gpu} on {card.node} {state} ({card.cause})."
        )


def _hot(readings: Readings, rule: TemperatureRule, name: str) -> Iterator[Finding]:
    for gpu, node, degrees in readings.hot:
        if degrees > rule.limit_c:
            facts = {"node": node, "gpu": gpu, "temperature_c": degrees, "limit_c": rule.limit_c}
            text = f"GPU {gpu} on {node} is at {degrees} °C; the limit is {rule.limit_c} °C."
            yield Finding(name, gpu, text, facts)


def _quota(readings: Readings, rule: QuotaRule, name: str) -> Iterator[Finding]:
    for holder, used, limit, tenant in readings.uses:
        if limit > 0 and used > rule.percent * limit:
            facts = {"holder": holder, "gpus_used": used / 1000, "gpus_quota": limit / 1000}
            facts["percent"] = round(used / limit, 3)
            verb = "use" if holder == "pools together" else "uses"
            text = f"The {holder} {verb} {used / 1000:g} of {limit / 1000:g} GPUs ({used / limit:.0%})."
            yield Finding(name, holder, text, facts, tenant=tenant, plain="" if tenant else text)


def _failures(readings: Readings, rule: FailureRule, name: str) -> Iterator[Finding]:
    ended, failed = readings.ended, readings.failed
    if ended >= rule.least_tasks and failed > rule.percent * ended:
        minutes = rule.window_ms / 60_000
        facts = {"failed": failed, "ended": ended, "percent": round(failed / ended, 3), "minutes": minutes}
        text = f"{failed} of the {ended} tasks that ended in the last {minutes:g} min failed ({failed / ended:.0%})."
        yield Finding(name, "cluster", text, facts)


def _waiting(readings: Readings, rule: WaitRule, name: str) -> Iterator[Finding]:
    for pool, task, since, tenant in readings.oldest:
        waited_ms = readings.at - since
        if waited_ms > rule.limit_ms:
            minutes = waited_ms // 60_000
            facts = {"task": task, "pool": pool, "waits_since": instant(since), "minutes": minutes}
            facts["limit_seconds"] = rule.limit_ms / 1000
            text = f"{task} ({pool}) has waited for {minutes} min. Why: dgpu why {task}"
            plain = f"A task of another tenant ({pool}) has waited for {minutes} min."
            yield Finding(name, pool, text, facts, tenant=tenant, plain=plain)


def _disk(readings: Readings, rule: DiskRule, name: str) -> Iterator[Finding]:
    free, total = readings.disk_free_bytes, readings.disk_total_bytes
    is_low = free is not None and total > 0 and free < rule.free_percent * total and free < rule.free_bytes
    if not is_low and not readings.journal_full:
        return
    facts: dict[str, Any] = {"journal_full": readings.journal_full}
    text = "The journal has no room: submits are refused." if readings.journal_full else ""
    if free is not None and total > 0:
        facts |= {"free_gib": round(free / _GIB, 2), "total_gib": round(total / _GIB, 2)}
        text = f"{text} The scheduler's disk has {free / _GIB:.1f} of {total / _GIB:.1f} GiB free.".strip()
    yield Finding(name, "scheduler", text, facts)


def _epoch(readings: Readings, _rule: Rule, name: str) -> Iterator[Finding]:
    if why := readings.epoch_unknown:
        yield Finding(name, "scheduler", f"Nodes are refused: {why}.", {"why": why})


def _unavailable(readings: Readings, _rule: Rule, name: str) -> Iterator[Finding]:
    trouble, repaired = readings.journal_trouble, readings.journal_repaired
    if trouble:
        text = f"New tasks are refused: {trouble}."
        yield Finding(name, "scheduler", text, {"refusing": True, "detail": trouble})
    elif repaired:
        text = f"Files of the scheduler were deleted or replaced while it ran: {repaired}."
        yield Finding(name, "scheduler", text, {"refusing": False, "detail": repaired})


def _clocks(readings: Readings, rule: ClockRule, name: str) -> Iterator[Finding]:
    for subject, ahead_ms in readings.clocks:
        if abs(ahead_ms) < rule.limit_ms:
            continue
        facts = {
            "node": "" if subject == "scheduler" else subject,
            "seconds_ahead": ahead_ms / 1000,
            "limit_seconds": rule.limit_ms / 1000,
        }
        amount = words_of_ms(abs(ahead_ms))
        if subject == "scheduler":
            text = f"The scheduler's wall clock was set {'forward' if ahead_ms > 0 else 'back'} by {amount}."
        else:
            side = "ahead of" if ahead_ms > 0 else "behind"
            text = f"The clock of node {subject} is {amount} {side} the scheduler's."
        yield Finding(name, subject, f"{text} Check the time service (chrony, systemd-timesyncd).", facts)


def _told(found: Iterator[Found], name: str) -> Iterator[Finding]:
    return (Finding(name, subject, summary, facts) for subject, summary, facts in found)


def _told_to(found: Iterator[FoundOfTenant], name: str) -> Iterator[Finding]:
    return (
        Finding(name, subject, summary, facts, tenant=tenant) for subject, summary, facts, tenant in found
    )


_FINDERS: dict[str, Callable[[Readings, Any, str], Iterator[Finding]]] = {
    "agent_offline": _offline,
    "node_unfit": _unfit,
    "history_behind": _behind,
    "gpu_error": _sick,
    "gpu_unrecoverable": _sick,
    "gpu_temperature": _hot,
    "quota_usage": _quota,
    "failure_rate": _failures,
    "queue_wait": _waiting,
    "worker_down": lambda each, _rule, name: _told_to(troubled(each.troubles), name),
    "disk_full": _disk,
    "epoch_unknown": _epoch,
    "journal_unavailable": _unavailable,
    "clock_skew": _clocks,
    "standby_lagging": lambda each, rule, name: _told(lagging(each.shared, rule.limit_ms), name),
    "master_changed": lambda each, rule, name: _told(changed(each.shared, rule.window_ms), name),
    "engine_unavailable": lambda each, _rule, name: _told(without_majority(each.shared), name),
    "engine_member_lost": lambda each, _rule, name: _told(lost_members(each.shared), name),
    "engine_quota": lambda each, rule, name: _told(filling(each.shared, rule.percent), name),
}
