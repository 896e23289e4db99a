"""Alerts and messages in the form for clients: responses, server-sent events, webhook bodies, mails."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from dgpu.service.access.principal import Tenants
from dgpu.service.alerts.machine import AlertMachine
from dgpu.service.alerts.readers import alert_for
from dgpu.service.alerts.values import Alert, Change, Message, Silence
from dgpu.wire.alert_answers import AlertAnswer, SilenceAnswer, WebhookBody
from dgpu.wire.answers import instant, instant_or_none

MAX_TOLD_SINGLY = 100  # changes of one check; more are one event
_MAX_LINES = 20


class Letter(NamedTuple):
    """One message in every form that targets take."""

    title: str
    text: str
    body: bytes  # of a webhook
    kind: str  # of apprise: info | success | warning | failure
    event: str  # header of a webhook


def letter_of(message: Message) -> Letter:
    kinds = {"resolved": "success", "test": "info"}
    return Letter(
        title=mail_title(message),
        text=mail_text(message),
        body=webhook_body(message),
        kind=kinds.get(message.state, "failure" if message.severity == "critical" else "warning"),
        event="test" if message.state == "test" else "alert",
    )


def alert_answer(alert: Alert, silenced_until: int = 0) -> AlertAnswer:
    return AlertAnswer(
        id=f"alert-{alert.number}",
        rule=alert.rule,
        subject=alert.subject,
        state=alert.state.value,
        severity=alert.severity,
        summary=alert.summary,
        facts=alert.facts,
        pending_since=instant(alert.pending_since),
        firing_since=instant_or_none(alert.firing_since),
        resolved_at=instant_or_none(alert.resolved_at),
        flaps=alert.flaps,
        acknowledged_at=instant_or_none(alert.acknowledged_at),
        comment=alert.comment,
        silenced_until=instant_or_none(silenced_until),
    )


def silence_answer(silence: Silence, now: int) -> SilenceAnswer:
    return SilenceAnswer(
        id=f"silence-{silence.number}",
        rule=silence.rule,
        subject=silence.subject,
        created_at=instant(silence.created_at),
        until=instant(silence.until),
        comment=silence.comment,
        active=silence.until > now,
    )


def change_stream_text(
    changes: Sequence[Change], machine: AlertMachine, now: int, tenants: Tenants = None
) -> bytes:
    """Without an id: alerts are not in the journal, so a listener's position in the journal does not change."""
    changes = [
        Change(name, seen) for name, alert in changes if (seen := alert_for(tenants, alert)) is not None
    ]
    told = {"at": instant(now), "type": "alert"}
    if len(changes) > MAX_TOLD_SINGLY:
        many = {**told, "change": "many", "count": len(changes)}
        return b"event: alert\ndata: %b\n\n" % msgspec.json.encode(many)
    parts = []
    for name, alert in changes:
        shown = alert_answer(alert, machine.silenced_until(alert))
        data = msgspec.json.encode({**told, "change": name, "alert": shown})
        parts.append(b"event: alert\ndata: %b\n\n" % data)
    return b"".join(parts)


def webhook_body(message: Message) -> bytes:
    body = WebhookBody(
        type="test" if message.state == "test" else "alert",
        state=message.state,
        reminder=message.reminder,
        rule=message.rule,
        severity=message.severity,
        count=message.count,
        summary=message.summary,
        at=instant(message.at),
        alerts=[alert_answer(alert) for alert in message.alerts],
    )
    return msgspec.json.encode(body)


def mail_title(message: Message) -> str:
    if message.state == "test":
        return "[dgpu] test"
    what = message.rule if message.count == 1 else f"{message.count:,} x {message.rule}"
    word = "resolved" if message.state == "resolved" else message.severity
    return f"[dgpu] {word}: {what}"


def mail_text(message: Message) -> str:
    lines = [message.summary]
    if message.count > 1:
        lines += ["", *(f"- {alert.summary}" for alert in message.alerts[:_MAX_LINES])]
        if message.count > _MAX_LINES:
            lines.append(f"- and {message.count - _MAX_LINES:,} more: dgpu alerts")
    if message.state == "firing":
        first = message.alerts[0]
        lines += ["", f"To acknowledge it: dgpu alerts ack alert-{first.number}"]
    return "\n".join(lines)
