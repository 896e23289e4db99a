"""Alerts as a machine without I/O: findings and a time in, changes and messages out.

a finding ──► PENDING ── held for long enough ──► FIRING ── gone for long enough ──► RESOLVED
                 └─ gone: withdrawn                  ▲                                  │
                                                     └──── back soon: the same alert ───┘
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

from msgspec.structs import replace

from dgpu.service.alerts.rules import Finding, Rule
from dgpu.service.alerts.values import (
    ANY,
    MAX_ENDED,
    MAX_IN_A_MESSAGE,
    MAX_OPEN,
    MAX_SILENCES,
    Alert,
    AlertState,
    Change,
    KeptAlerts,
    Key,
    MachineOptions,
    Message,
    Silence,
)


class _Bundle(NamedTuple):
    """Alerts that share a message, and the time since when they wait for it."""

    since: int
    alerts: dict[Key, Alert]


_BundleName = tuple[str, Literal["firing", "resolved"], bool]  # rule, state, reminder


class AlertMachine:
    def __init__(self, options: MachineOptions, kept: KeptAlerts | None = None) -> None:
        kept = kept or KeptAlerts()
        self._rules = options.rules
        self._times = options.times
        self._next_alert = kept.next_alert
        self._next_silence = kept.next_silence
        self.open: dict[Key, Alert] = {alert.key: alert for alert in kept.firing}
        self.resolved: dict[int, Alert] = {}
        self._last: dict[Key, int] = {}  # the number of the last resolved alert of a key
        self._before: dict[
            Key, Alert
        ] = {}  # of pending alerts that fired recently: their state when resolved
        self.silences: dict[int, Silence] = {silence.number: silence for silence in kept.silences}
        self.ended: dict[int, Silence] = {silence.number: silence for silence in kept.ended}
        self._quiet: dict[tuple[str, str | None], int] = {}  # end of the silence
        self._bundles: dict[_BundleName, _Bundle] = {}
        self.dropped = 0  # findings of the last check beyond the limit
        for alert in kept.resolved:
            self._shelve(alert)
            if alert.told:  # its end was not reported before the stop
                self._bundle(alert, "resolved", alert.resolved_at)
        self._index_silences()

    # Inputs

    def on_findings(self, found: Iterable[Finding], now: int) -> list[Change]:
        """`found`: all conditions that hold now; every other condition does not hold."""
        changes = self._end_silences(now)
        seen: set[Key] = set()
        self.dropped = 0
        for finding in found:
            key = (finding.rule, finding.subject)
            if key not in seen:
                seen.add(key)
                changes += self._on_holds(key, finding, now)
        for key in [key for key in self.open if key not in seen]:
            changes += self._on_absent(key, now)
        self._queue_messages(now)
        return changes

    def take_messages(self, now: int) -> list[Message]:
        """Messages whose bundle has waited long enough for more alerts."""
        messages = []
        for name, bundle in list(self._bundles.items()):
            if now - bundle.since >= self._times.group_wait_ms:
                del self._bundles[name]
                message = self._message(name, bundle, now)
                if message is not None:
                    messages.append(message)
        return messages

    def acknowledge(self, number: int, comment: str, now: int) -> Change | None:
        """None: no open alert has this number."""
        for key, alert in self.open.items():
            if alert.number == number:
                known = replace(alert, acknowledged_at=now, comment=comment or alert.comment)
                self.open[key] = known
                return Change("acknowledged", known)
        return None

    def silence(
        self, rule: str, subject: str | None, until: int, comment: str, now: int
    ) -> tuple[Silence, list[Change]] | None:
        """None: the limit of silences is reached."""
        if len(self.silences) >= MAX_SILENCES:
            return None
        number, self._next_silence = self._next_silence, self._next_silence + 1
        silence = Silence(
            number=number, rule=rule, subject=subject, created_at=now, until=until, comment=comment
        )
        before = [alert for alert in self.open.values() if not self.silenced_until(alert)]
        self.silences[number] = silence
        self._index_silences()
        return silence, [Change("silenced", alert) for alert in before if self.silenced_until(alert)]

    def unsilence(self, number: int, now: int) -> list[Change] | None:
        if number not in self.silences:
            return None
        return self._without_silences([number], now)

    # Undoing changes that could not be stored

    def forget_silence(self, number: int) -> None:
        """Removes a silence as if it had never existed."""
        self.silences.pop(number, None)
        self._index_silences()

    def bring_back_silence(self, silence: Silence) -> None:
        self.ended.pop(silence.number, None)
        self.silences[silence.number] = silence
        self._index_silences()

    def forget_acknowledgement(self, known: Alert, before: Alert) -> None:
        now = self.open.get(known.key)
        if now is not None and (now.number, now.acknowledged_at) == (known.number, known.acknowledged_at):
            was = {"acknowledged_at": before.acknowledged_at, "comment": before.comment}
            self.open[known.key] = replace(now, **was)

    # Queries

    def silenced_until(self, alert: Alert) -> int:
        """0: not silenced."""
        if not self._quiet:
            return 0
        rule, subject = alert.rule, alert.subject
        quiet = self._quiet.get
        return max(
            quiet((rule, subject), 0), quiet((rule, None), 0), quiet((ANY, subject), 0), quiet((ANY, None), 0)
        )

    def find(self, number: int) -> Alert | None:
        if number in self.resolved:
            return self.resolved[number]
        return next((alert for alert in self.open.values() if alert.number == number), None)

    def listed(self) -> Iterator[Alert]:
        """Firing, pending, resolved; within each, the newest first."""
        firing = [alert for alert in self.open.values() if alert.state is AlertState.FIRING]
        pending = [alert for alert in self.open.values() if alert.state is AlertState.PENDING]
        yield from sorted(firing, key=lambda alert: (alert.firing_since, alert.number), reverse=True)
        yield from sorted(pending, key=lambda alert: (alert.pending_since, alert.number), reverse=True)
        yield from reversed(self.resolved.values())

    def kept(self) -> KeptAlerts:
        return KeptAlerts(
            next_alert=self._next_alert,
            next_silence=self._next_silence,
            firing=tuple(alert for alert in self.open.values() if alert.state is AlertState.FIRING),
            resolved=(*self._before.values(), *self.resolved.values()),
            silences=tuple(self.silences.values()),
            ended=tuple(self.ended.values()),
        )

    # Steps of one alert

    def _on_holds(self, key: Key, finding: Finding, now: int) -> Iterator[Change]:
        alert = self.open.get(key)
        rule: Rule = getattr(self._rules, finding.rule)
        if alert is None:
            if len(self.open) >= MAX_OPEN:
                self.dropped += 1
                return
            alert = self._begin(key, finding, rule, now)
            if rule.for_ms > 0:
                yield Change("pending", alert)
        else:
            told = _told(finding)
            if alert.clear_since or any(getattr(alert, name) != value for name, value in told.items()):
                self.open[key] = alert = replace(alert, **told, clear_since=0)
        if alert.state is AlertState.PENDING and now - alert.pending_since >= rule.for_ms:
            alert = replace(alert, state=AlertState.FIRING, firing_since=now)
            self._before.pop(key, None)
            self.open[key] = alert
            yield Change("firing", alert)

    def _begin(self, key: Key, finding: Finding, rule: Rule, now: int) -> Alert:
        last = self.resolved.get(self._last.get(key, 0))
        if last is not None and now - last.resolved_at < self._times.reopen_ms:
            self._unshelve(last)
            self._before[key] = last
            alert = replace(
                last,
                state=AlertState.PENDING,
                severity=rule.severity,
                **_told(finding),
                pending_since=now,
                firing_since=0,
                clear_since=0,
                resolved_at=0,
                flaps=last.flaps + 1,
            )
        else:
            alert = Alert(
                number=self._next_alert,
                rule=finding.rule,
                subject=finding.subject,
                severity=rule.severity,
                state=AlertState.PENDING,
                **_told(finding),
                pending_since=now,
            )
            self._next_alert += 1
        self.open[key] = alert
        return alert

    def _on_absent(self, key: Key, now: int) -> Iterator[Change]:
        alert = self.open[key]
        if alert.state is AlertState.PENDING:
            del self.open[key]
            before = self._before.pop(key, None)
            if before is not None:  # it fired before: that is restored
                self._shelve(before)
                if before.told:
                    self._bundle(before, "resolved", now)
            yield Change("withdrawn", alert)
            return
        if not alert.clear_since:
            self.open[key] = alert = replace(alert, clear_since=now)
        if now - alert.clear_since >= self._resolve_after_ms(alert):
            del self.open[key]
            alert = replace(alert, state=AlertState.RESOLVED, resolved_at=now)
            self._shelve(alert)
            if alert.told:
                self._bundle(alert, "resolved", now)
            yield Change("resolved", alert)

    def _resolve_after_ms(self, alert: Alert) -> int:
        """A flapping alert must stay clear longer each time, so that it sends fewer messages."""
        times = self._times
        return min(
            times.resolve_after_ms << min(alert.flaps, 20),
            max(times.max_resolve_after_ms, times.resolve_after_ms),
        )

    # Messages

    def _queue_messages(self, now: int) -> None:
        repeat_ms = self._times.repeat_ms
        for alert in self.open.values():
            if alert.state is not AlertState.FIRING or alert.clear_since or self._is_hushed(alert):
                continue
            if not alert.told:
                self._bundle(alert, "firing", now)
            elif repeat_ms and now - alert.told_at >= repeat_ms:
                self._bundle(alert, "firing", now, reminder=True)

    def _is_hushed(self, alert: Alert) -> bool:
        return bool(alert.acknowledged_at or self.silenced_until(alert))

    def _bundle(
        self, alert: Alert, state: Literal["firing", "resolved"], now: int, *, reminder: bool = False
    ) -> None:
        bundle = self._bundles.setdefault((alert.rule, state, reminder), _Bundle(now, {}))
        bundle.alerts[alert.key] = alert

    def _message(self, name: _BundleName, bundle: _Bundle, now: int) -> Message | None:
        rule, state, reminder = name
        tell = self._told_firing if state == "firing" else self._told_resolved
        told = [*tell(bundle.alerts, now)]
        if not told:
            return None
        return Message(
            state=state,
            rule=rule,
            severity=told[0].severity,
            at=now,
            count=len(told),
            alerts=tuple(told[:MAX_IN_A_MESSAGE]),
            reminder=reminder,
        )

    def _told_firing(self, alerts: Mapping[Key, Alert], now: int) -> Iterator[Alert]:
        """Alerts that ended or were silenced while the bundle waited are left out."""
        for key in alerts:
            alert = self.open.get(key)
            if alert is not None and alert.state is AlertState.FIRING and not self._is_hushed(alert):
                self.open[key] = alert = replace(alert, told=True, told_at=now)
                yield alert

    def _told_resolved(self, alerts: Mapping[Key, Alert], _now: int) -> Iterator[Alert]:
        for key, alert in alerts.items():
            back = self.open.get(key)
            if back is not None and back.number == alert.number:
                continue  # targets that know it as firing need not hear of the interruption
            if alert.number in self.resolved:  # in a storm it may have left the list already
                self.resolved[alert.number] = replace(alert, told=False)
            if not self.silenced_until(alert):
                yield alert

    # Leaves

    def _shelve(self, alert: Alert) -> None:
        self.resolved[alert.number] = alert
        self._last[alert.key] = alert.number
        while len(self.resolved) > self._times.keep_resolved:
            self._unshelve(next(iter(self.resolved.values())))

    def _unshelve(self, alert: Alert) -> None:
        del self.resolved[alert.number]
        if self._last.get(alert.key) == alert.number:
            del self._last[alert.key]

    def _end_silences(self, now: int) -> list[Change]:
        over = [number for number, silence in self.silences.items() if silence.until <= now]
        return self._without_silences(over, now) if over else []

    def _without_silences(self, numbers: list[int], now: int) -> list[Change]:
        before = [alert for alert in self.open.values() if self.silenced_until(alert)]
        for number in numbers:
            silence = self.silences.pop(number)
            self.ended[number] = replace(silence, until=min(silence.until, now))
        while len(self.ended) > MAX_ENDED:
            del self.ended[next(iter(self.ended))]
        self._index_silences()
        return [Change("unsilenced", alert) for alert in before if not self.silenced_until(alert)]

    def _index_silences(self) -> None:
        self._quiet = {}
        for silence in self.silences.values():
            key = (silence.rule, silence.subject)
            self._quiet[key] = max(self._quiet.get(key, 0), silence.until)


def _told(finding: Finding) -> dict[str, Any]:
    """The fields of an alert that each check may change."""
    return {
        "summary": finding.summary,
        "facts": dict(finding.facts),
        "tenant": finding.tenant,
        "plain": finding.plain,
    }
