"""The part of both clients that is about alerts."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from dgpu.client.calls import Call
from dgpu.wire import alert_answers
from dgpu.wire.answers import Removed

T = TypeVar("T")

_ROOT = "/api/v1/alerts"
_NOTHING = b"{}"


def listed(state: str | None, rule: str | None, limit: int | None) -> Call[alert_answers.AlertList]:
    asked = {"state": state, "rule": rule, "limit": limit}
    query = urlencode({key: value for key, value in asked.items() if value is not None})
    path = f"{_ROOT}?{query}" if query else _ROOT
    return Call(method="GET", path=path, answer=alert_answers.AlertList)


def shown(alert_id: str | int) -> Call[alert_answers.AlertAnswer]:
    return Call(method="GET", path=_path(alert_id), answer=alert_answers.AlertAnswer)


def acknowledged(alert_id: str | int, comment: str) -> Call[alert_answers.AlertAnswer]:
    return Call(
        method="POST",
        path=f"{_path(alert_id)}/acknowledge",
        answer=alert_answers.AlertAnswer,
        body=_given(comment=comment or None),
    )


def silenced(
    rule: str, subject: str | None, seconds: float | None, until: str | None, comment: str
) -> Call[alert_answers.SilenceAnswer]:
    body = _given(rule=rule, subject=subject, seconds=seconds, until=until, comment=comment or None)
    return Call(method="POST", path=f"{_ROOT}/silences", answer=alert_answers.SilenceAnswer, body=body)


def silences(*, ended: bool) -> Call[alert_answers.SilenceList]:
    query = "?ended=true" if ended else ""
    return Call(method="GET", path=f"{_ROOT}/silences{query}", answer=alert_answers.SilenceList)


def unsilenced(silence_id: str | int) -> Call[Removed]:
    path = f"{_ROOT}/silences/{quote(str(silence_id), safe='')}"
    return Call(method="DELETE", path=path, answer=Removed)


def targets() -> Call[alert_answers.TargetList]:
    return Call(method="GET", path=f"{_ROOT}/targets", answer=alert_answers.TargetList)


def tested() -> Call[alert_answers.TestedTargets]:
    return Call(method="POST", path=f"{_ROOT}/test", answer=alert_answers.TestedTargets, body=_NOTHING)


def _path(alert_id: str | int) -> str:
    return f"{_ROOT}/{quote(str(alert_id), safe='')}"


def _given(**fields: Any) -> bytes:
    return msgspec.json.encode({name: value for name, value in fields.items() if value is not None})


class AlertCalls(abc.ABC):
    @abc.abstractmethod
    def _do(self, call: Call[T]) -> T: ...

    def alerts(
        self, *, state: str | None = None, rule: str | None = None, limit: int | None = None
    ) -> alert_answers.AlertList:
        """`state`: pending, firing, resolved, or open for the first two."""
        return self._do(listed(state, rule, limit))

    def alert(self, alert_id: str | int) -> alert_answers.AlertAnswer:
        return self._do(shown(alert_id))

    def acknowledge_alert(self, alert_id: str | int, *, comment: str = "") -> alert_answers.AlertAnswer:
        """Somebody looks after it: no reminder is sent any more."""
        return self._do(acknowledged(alert_id, comment))

    def silence_alerts(
        self,
        rule: str,
        *,
        subject: str | None = None,
        seconds: float | None = None,
        until: str | None = None,
        comment: str = "",
    ) -> alert_answers.SilenceAnswer:
        """No message of this rule (`*`: of any), for so many seconds or until then (RFC 3339)."""
        return self._do(silenced(rule, subject, seconds, until, comment))

    def alert_silences(self, *, ended: bool = False) -> Sequence[alert_answers.SilenceAnswer]:
        """Those that hold now; with `ended` the last that are over, too."""
        return self._do(silences(ended=ended)).silences

    def remove_silence(self, silence_id: str | int) -> None:
        self._do(unsilenced(silence_id))

    def alert_targets(self) -> Sequence[alert_answers.TargetAnswer]:
        return self._do(targets()).targets

    def test_alert_targets(self) -> Sequence[alert_answers.TestedTarget]:
        """Sends a test message to each, now; tells how each went."""
        return self._do(tested()).targets


class AsyncAlertCalls(abc.ABC):
    """The same, awaited."""

    @abc.abstractmethod
    async def _do(self, call: Call[T]) -> T: ...

    async def alerts(
        self, *, state: str | None = None, rule: str | None = None, limit: int | None = None
    ) -> alert_answers.AlertList:
        return await self._do(listed(state, rule, limit))

    async def alert(self, alert_id: str | int) -> alert_answers.AlertAnswer:
        return await self._do(shown(alert_id))

    async def acknowledge_alert(self, alert_id: str | int, *, comment: str = "") -> alert_answers.AlertAnswer:
        return await self._do(acknowledged(alert_id, comment))

    async def silence_alerts(
        self,
        rule: str,
        *,
        subject: str | None = None,
        seconds: float | None = None,
        until: str | None = None,
        comment: str = "",
    ) -> alert_answers.SilenceAnswer:
        return await self._do(silenced(rule, subject, seconds, until, comment))

    async def alert_silences(self, *, ended: bool = False) -> Sequence[alert_answers.SilenceAnswer]:
        return (await self._do(silences(ended=ended))).silences

    async def remove_silence(self, silence_id: str | int) -> None:
        await self._do(unsilenced(silence_id))

    async def alert_targets(self) -> Sequence[alert_answers.TargetAnswer]:
        return (await self._do(targets())).targets

    async def test_alert_targets(self) -> Sequence[alert_answers.TestedTarget]:
        return (await self._do(tested())).targets
