"""Calls about alerts."""

from __future__ import annotations

from collections.abc import Sequence

from dgpu.client.call import Call
from dgpu.client.request import NOTHING, Request, api_path, given
from dgpu.wire import alert_answers as answers
from dgpu.wire.answers import Removed


class AlertCalls:
    @Call
    def alerts(
        self, *, state: str | None = None, rule: str | None = None, limit: int | None = None
    ) -> Request[answers.AlertList]:
        """`state`: pending, firing, resolved, or open for the first two."""
        return Request("GET", api_path("alerts", state=state, rule=rule, limit=limit), answers.AlertList)

    @Call
    def alert(self, alert_id: str | int) -> Request[answers.AlertAnswer]:
        """One alert."""
        return Request("GET", api_path("alerts", alert_id), answers.AlertAnswer)

    @Call
    def acknowledge_alert(self, alert_id: str | int, *, comment: str = "") -> Request[answers.AlertAnswer]:
        """Acknowledges an alert: no more reminders are sent."""
        path = api_path("alerts", alert_id, "acknowledge")
        return Request("POST", path, answers.AlertAnswer, body=given(comment=comment or None))

    @Call
    def silence_alerts(
        self,
        rule: str,
        *,
        subject: str | None = None,
        seconds: float | None = None,
        until: str | None = None,
        comment: str = "",
    ) -> Request[answers.SilenceAnswer]:
        """Sends no message of this rule (`*`: of any rule), for this many seconds or until this time (RFC 3339)."""
        body = given(rule=rule, subject=subject, seconds=seconds, until=until, comment=comment or None)
        path = api_path("alerts", "silences")
        return Request("POST", path, answers.SilenceAnswer, body=body, is_repeatable=False)

    @Call
    def alert_silences(self, *, ended: bool = False) -> Request[Sequence[answers.SilenceAnswer]]:
        """Active silences; with `ended`, also the last ended ones."""
        path = api_path("alerts", "silences", ended="true" if ended else None)
        return Request("GET", path, answers.SilenceList).picking(lambda found: found.silences)

    @Call
    def remove_silence(self, silence_id: str | int) -> Request[None]:
        """Ends a silence."""
        return Request("DELETE", api_path("alerts", "silences", silence_id), Removed).picking(lambda _: None)

    @Call
    def alert_targets(self) -> Request[Sequence[answers.TargetAnswer]]:
        """Targets that alerts are sent to, with counts of messages and the last error of each."""
        return Request("GET", api_path("alerts", "targets"), answers.TargetList).picking(
            lambda found: found.targets
        )

    @Call
    def test_alert_targets(self) -> Request[Sequence[answers.TestedTarget]]:
        """Sends a test message to each target now, and returns the results."""
        path = api_path("alerts", "test")
        request = Request("POST", path, answers.TestedTargets, body=NOTHING, is_repeatable=False)
        return request.picking(lambda done: done.targets)
