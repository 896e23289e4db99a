"""Alerts and silences as readers of some tenants get them: without names of others, and without words of operators."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from msgspec.structs import replace

from dgpu.service.access.anonymous import without_tasks
from dgpu.service.access.principal import Tenants
from dgpu.service.alerts.values import Alert, Silence

# Their texts name only nodes, GPUs and the scheduler. An alert of another rule is told to tenants only as its finding
# says: a new rule stays with readers of all tenants until it is decided.
PUBLIC_RULES: Final = frozenset(
    {
        "agent_offline",
        "node_unfit",
        "history_behind",
        "gpu_temperature",
        "failure_rate",
        "disk_full",
        "epoch_unknown",
        "journal_unavailable",
        "clock_skew",
        "standby_lagging",
        "master_changed",
        "engine_unavailable",
        "engine_member_lost",
        "engine_quota",
    }
)
_NAMES: Final = frozenset({"task", "evidence"})


def alert_for(tenants: Tenants, alert: Alert) -> Alert | None:
    """None: it is about another tenant."""
    if tenants is None:
        return alert
    if alert.tenant and alert.tenant in tenants:
        return replace(alert, comment="")
    plain = without_tasks(alert.summary) if alert.rule in PUBLIC_RULES else alert.plain
    if not plain:
        return None
    facts = {
        name: without_tasks(value) if isinstance(value, str) else value
        for name, value in alert.facts.items()
        if name not in _NAMES
    }
    return replace(alert, summary=plain, facts=facts, comment="")


def silences_for(tenants: Tenants, silences: Iterable[Silence], alerts: Iterable[Alert]) -> Iterator[Silence]:
    """Silences of whole rules, and of subjects of alerts that the reader gets."""
    if tenants is None:
        yield from silences
        return
    subjects = {alert.subject for alert in alerts if alert_for(tenants, alert) is not None}
    for silence in silences:
        if silence.subject is None or silence.subject in subjects:
            yield replace(silence, comment="")
