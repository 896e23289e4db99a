"""Alerts, silences and unsent messages as records of the journal: each changed one is stored alone.

A record is written again only when a fact changes that must survive. The summary of a firing alert changes with every
check; the next check after a restart makes it anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec
import structlog
from msgspec.structs import replace

from dgpu.core.model.alert_records import MAX_RECORD_BYTES
from dgpu.service.alerts.outbox import Delivery
from dgpu.service.alerts.values import Alert, KeptAlerts, Silence

MAX_PUT = 500  # records of one command
MAX_PUT_BYTES = 512 << 10

_NUMBERS = "numbers"
NOTICES = "notice/"  # records about tasks, which service.notices keeps
_log = structlog.get_logger("dgpu.alerts")


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    alerts: KeptAlerts = KeptAlerts()
    unsent: tuple[Delivery, ...] = ()


class _Numbers(msgspec.Struct, frozen=True, array_like=True):
    next_alert: int = 1
    next_silence: int = 1


class Step(NamedTuple):
    """The content of one command."""

    put: dict[str, bytes]
    removed: tuple[str, ...]


class AlertRecords:
    """The records that the journal has."""

    def __init__(self, stored: Mapping[str, bytes]) -> None:
        self._stored = dict(stored)
        self._facts = {name: fact for name, _, fact in _all(load(stored))}

    def changes(self, kept: Kept) -> list[Step]:
        """Unsent messages go first: an alert must not count as told before its message is stored."""
        now = {name: (content, fact) for name, content, fact in _all(kept)}
        put = {
            name: content
            for name, (content, fact) in now.items()
            if self._facts.get(name) != fact and len(content) <= MAX_RECORD_BYTES
        }
        steps: list[Step] = []
        size = MAX_PUT_BYTES
        for name, content in put.items():
            if size + len(content) > MAX_PUT_BYTES or len(steps[-1].put) >= MAX_PUT:
                steps.append(Step({}, ()))
                size = 0
            steps[-1].put[name] = content
            size += len(content)
        removed = tuple(name for name in self._stored if name not in now)
        if removed:
            last = steps.pop() if steps else Step({}, ())
            steps.append(Step(last.put, removed))
        return steps

    def on_stored(self, step: Step, kept: Kept) -> None:
        for name in step.removed:
            self._stored.pop(name, None)
            self._facts.pop(name, None)
        self._stored.update(step.put)
        self._facts.update((name, fact) for name, _, fact in _all(kept) if name in step.put)


def load(stored: Mapping[str, bytes]) -> Kept:
    """A record that cannot be read is left out and logged."""
    numbers = _Numbers()
    firing: list[Alert] = []
    resolved: list[Alert] = []
    silences: list[Silence] = []
    ended: list[Silence] = []
    unsent: list[Delivery] = []
    for name in sorted(stored):
        kind = name.partition("/")[0]
        try:
            match kind:
                case "numbers":
                    numbers = msgspec.json.decode(stored[name], type=_Numbers)
                case "firing" | "resolved":
                    alert = msgspec.json.decode(stored[name], type=Alert)
                    (firing if kind == "firing" else resolved).append(alert)
                case "silence" | "ended":
                    silence = msgspec.json.decode(stored[name], type=Silence)
                    (silences if kind == "silence" else ended).append(silence)
                case "unsent":
                    unsent.append(msgspec.json.decode(stored[name], type=Delivery))
        except msgspec.MsgspecError as error:
            _log.error("alert_record_damaged", record=name, error=str(error))
    alerts = KeptAlerts(
        next_alert=numbers.next_alert,
        next_silence=numbers.next_silence,
        firing=tuple(sorted(firing, key=lambda alert: alert.number)),
        resolved=tuple(sorted(resolved, key=lambda alert: (alert.resolved_at, alert.number))),
        silences=tuple(sorted(silences, key=lambda silence: silence.number)),
        ended=tuple(sorted(ended, key=lambda silence: (silence.until, silence.number))),
    )
    unsent.sort(key=lambda delivery: (delivery.message.at, delivery.id))
    return Kept(alerts=alerts, unsent=tuple(unsent))


def _all(kept: Kept) -> Iterator[tuple[str, bytes, object]]:
    """Name, content, and the facts whose change counts."""
    for delivery in kept.unsent:
        yield f"unsent/{delivery.target}/{delivery.id}", _encode(delivery), (delivery.id, delivery.attempts)
    for kind, silences in (("silence", kept.alerts.silences), ("ended", kept.alerts.ended)):
        for silence in silences:
            yield f"{kind}/{silence.number}", _encode(silence), silence
    for kind, alerts in (("firing", kept.alerts.firing), ("resolved", kept.alerts.resolved)):
        for alert in alerts:
            lasting = replace(alert, summary="", facts={}, plain="", clear_since=0)
            yield f"{kind}/{alert.number}", _encode(alert), lasting
    numbers = _Numbers(kept.alerts.next_alert, kept.alerts.next_silence)
    yield _NUMBERS, _encode(numbers), numbers


def _encode(value: msgspec.Struct) -> bytes:
    return msgspec.json.encode(value)
