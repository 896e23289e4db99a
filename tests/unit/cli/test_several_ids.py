"""Several ids, one of which fails: what was done to the others is told, then what failed, with its exit code."""

from __future__ import annotations

import json

import pytest

from .conftest import problem, task

TASKS = "/api/v1/tasks"


def no_such(name, code="unknown_task"):
    return 404, problem(404, code, f"There is no {name}.")


@pytest.fixture
def call(dgpu, server):
    return lambda *arguments: dgpu(*arguments, "--server", server.url)


def alert(number):
    return {
        "id": f"alert-{number}",
        "rule": "agent_offline",
        "subject": "n1",
        "state": "firing",
        "severity": "critical",
        "summary": "Node n1 is offline.",
        "pending_since": "2026-05-04T10:00:00.000Z",
        "firing_since": "2026-05-04T10:00:00.000Z",
    }


def test_alerts_that_are_there_are_acknowledged_and_shown(call, server):
    root = "/api/v1/alerts"
    server.answers["POST", f"{root}/99/acknowledge"] = no_such("alert-99", "unknown_alert")
    for number in (1, 2):
        server.answers["POST", f"{root}/{number}/acknowledge"] = (200, alert(number))
    code, out, err = call("alerts", "ack", "1", "99", "2", "-o", "name")
    assert (code, out.split()) == (5, ["alert-1", "alert-2"])
    assert err == "dgpu: There is no alert-99.\n"


def test_a_retry_that_is_refused_hides_none_of_the_others(call, server):
    for number, new in ((3, 7), (2, 8)):
        server.answers["POST", f"{TASKS}/task-{number}/retry"] = (
            201,
            {
                "task_id": f"task-{new}",
                "status": "pending",
                "created_at": "2026-05-04T10:00:00.000Z",
                "retry_of": "",
            },
        )
    server.answers["POST", f"{TASKS}/task-999/retry"] = no_such("task-999")
    server.answers["POST", f"{TASKS}/task-4/retry"] = (
        409,
        problem(409, "task_not_over", "task-4 is not over."),
    )
    code, out, err = call("retry", "3", "999", "4", "2")
    assert (code, out) == (5, "task-7\ntask-8\n")
    assert err == "dgpu: There is no task-999.\ntask-4 is not over.\n"
    code, out, _ = call("retry", "4", "3", "-o", "json")
    assert code == 6
    assert json.loads(out)["task_id"] == "task-7"


@pytest.mark.parametrize("verb", ["hold", "release"])
def test_held_and_released_are_told(call, server, verb):
    server.answers["POST", f"{TASKS}/task-1/{verb}"] = (200, task(1))
    server.answers["POST", f"{TASKS}/task-2/{verb}"] = (200, task(2))
    server.answers["POST", f"{TASKS}/task-9/{verb}"] = no_such("task-9")
    code, out, err = call(verb, "9", "1", "2")
    assert (code, out, err) == (5, "task-1\ntask-2\n", "dgpu: There is no task-9.\n")
    assert call(verb, "9") == (5, "", "dgpu: There is no task-9.\n")


@pytest.mark.parametrize("verb", ["show", "why"])
def test_what_can_be_shown_is_shown(call, server, verb):
    server.answers["GET", f"{TASKS}/task-1"] = (200, task(1))
    server.answers["GET", f"{TASKS}/task-1/why"] = (200, {"task_id": "task-1", "status": "pending"})
    for path in (f"{TASKS}/task-9", f"{TASKS}/task-9/why"):
        server.answers["GET", path] = no_such("task-9")
    code, out, err = call(verb, "9", "1")
    assert code == 5
    assert "task-1" in out
    assert "There is no task-9." in err


def test_nodes_and_tenants_that_were_removed_are_told(call, server):
    for path in ("nodes/a", "tenants/a"):
        server.answers["DELETE", f"/api/v1/{path}"] = (200, {"id": "a", "removed": True})
    for path in ("nodes/b", "tenants/b"):
        server.answers["DELETE", f"/api/v1/{path}"] = no_such("b", "unknown")
    for verb in ("nodes", "tenant"):
        assert call(verb, "remove", "b", "a") == (5, "a\n", "dgpu: There is no b.\n")
        code, out, _ = call(verb, "remove", "b", "a", "-o", "json")
        assert (code, json.loads(out)) == (5, {"removed": ["a"]})


def test_cancel_is_one_order_and_says_that_nothing_was_done(call, server):
    server.answers["POST", f"{TASKS}/cancel"] = no_such("task-999")
    code, out, err = call("cancel", "3", "999", "2")
    assert (code, out) == (5, "")
    assert err == "dgpu: There is no task-999.\nNone of the others was cancelled.\n"


def test_a_scheduler_that_goes_away_is_not_asked_for_the_others(call, server):
    server.answers["POST", f"{TASKS}/task-1/hold"] = (200, task(1))
    server.answers["POST", f"{TASKS}/task-2/hold"] = (401, problem(401, "unauthorized", "No token."))
    code, out, err = call("hold", "1", "2", "3", "4")
    assert (code, out) == (4, "task-1\n")
    assert "Not tried: task-3, task-4" in err
    assert server.sent("POST", f"{TASKS}/task-3/hold") == []
