"""alerts: what it sends, and what it shows."""

from __future__ import annotations

import json

import pytest

from .conftest import problem

ALERT = {
    "id": "alert-12",
    "rule": "agent_offline",
    "subject": "node-1",
    "state": "firing",
    "severity": "critical",
    "summary": "Node node-1 is offline.",
    "pending_since": "2026-05-04T10:00:00.000Z",
    "firing_since": "2026-05-04T10:00:00.000Z",
    "flaps": 2,
}
LIST = {"total": 1, "pending": 0, "firing": 1, "resolved": 3, "alerts": [ALERT]}
SILENCE = {
    "id": "silence-3",
    "rule": "agent_offline",
    "created_at": "2026-05-04T10:00:00.000Z",
    "until": "2026-05-04T11:00:00.000Z",
}
ROOT = "/api/v1/alerts"


@pytest.fixture
def call(dgpu, server):
    return lambda *arguments: dgpu("alerts", *arguments, "--server", server.url)


def test_open_alerts_are_listed_with_what_is_known_of_them(call, server):
    server.answers["GET", ROOT] = (200, LIST)
    code, out, err = call()
    assert code == 0
    assert out.splitlines()[0].split() == ["ALERT", "STATE", "SEVERITY", "FOR", "RULE", "WHAT", "REMARK"]
    assert "Node node-1 is offline." in out
    assert "came back 2 times" in out
    assert "1 firing, 0 pending, 3 resolved" in err
    assert call("list")[1].splitlines()[0] == out.splitlines()[0]
    assert call("-o", "name")[1] == "alert-12\n"
    assert json.loads(call("--json")[1])["alerts"][0]["id"] == "alert-12"


def test_all_and_state_exclude_each_other(call):
    assert call("--all", "--state", "firing")[0] == 2


def test_ack_sends_the_comment(call, server):
    server.answers["POST", f"{ROOT}/12/acknowledge"] = (
        200,
        {**ALERT, "acknowledged_at": "2026-05-04T10:05:00.000Z", "comment": "mine"},
    )
    code, out, _ = call("ack", "12", "-m", "mine")
    assert code == 0
    assert "acknowledged: mine" in out
    assert server.sent("POST", f"{ROOT}/12/acknowledge") == [{"comment": "mine"}]


def test_silence_takes_a_duration(call, server):
    server.answers["POST", f"{ROOT}/silences"] = (201, SILENCE)
    assert call("silence", "agent_offline", "node-1", "--for", "2h")[0] == 0
    assert call("silence", "*")[0] == 0
    assert server.sent("POST", f"{ROOT}/silences") == [
        {"rule": "agent_offline", "subject": "node-1", "seconds": 7200},
        {"rule": "*", "seconds": 3600},
    ]
    assert call("silence", "*", "--for", "soon")[0] == 2


def test_silences_are_listed_and_ended(call, server):
    server.answers["GET", f"{ROOT}/silences"] = (200, {"total": 1, "silences": [SILENCE]})
    assert "silence-3" in call("silences")[1]
    over = {**SILENCE, "id": "silence-2", "active": False}
    server.answers["GET", f"{ROOT}/silences"] = (200, {"total": 1, "silences": [over]})
    code, out, err = call("silences", "--all")
    assert (code, err) == (0, "There are no silences.\n")
    assert out.split()[-1] == "over"
    server.answers["DELETE", f"{ROOT}/silences/3"] = (200, {"id": "silence-3", "removed": True})
    assert call("unsilence", "3")[:2] == (0, "3\n")
    server.answers["DELETE", f"{ROOT}/silences/4"] = (
        404,
        problem(404, "unknown_silence", "There is no silence."),
    )
    assert call("unsilence", "4")[0] == 5


def test_a_test_that_fails_for_one_target_ends_with_1(call, server):
    good = {
        "name": "ops",
        "kind": "webhook",
        "address": "http://h/…",
        "ok": True,
        "detail": "answered 200",
        "seconds": 0.1,
    }
    bad = {**good, "name": "mail", "ok": False, "detail": "Connection refused"}
    server.answers["POST", f"{ROOT}/test"] = (200, {"targets": [good]})
    assert call("test")[0] == 0
    server.answers["POST", f"{ROOT}/test"] = (200, {"targets": [good, bad]})
    code, out, _ = call("test")
    assert code == 1
    assert "Connection refused" in out
    server.answers["POST", f"{ROOT}/test"] = (200, {"targets": []})
    code, _, err = call("test")
    assert code == 0
    assert "No target is configured" in err


def test_the_rules_named_in_the_help_are_those_of_the_scheduler():
    from dgpu.cli.alerts import RULES
    from dgpu.service.alerts.rules import RULE_NAMES

    assert RULES == RULE_NAMES
