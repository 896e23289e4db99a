"""--dry-run: what would happen, in words, and an exit code that says whether it could be done."""

from __future__ import annotations

import json

from .conftest import problem

NOTHING = {"starts": [], "delays": [], "stops": [], "waits": [], "rejected": None}


def test_a_submit_that_would_start_is_0_and_says_where(dgpu, server):
    starts = [{"task_id": "task-8", "nodes": ["n1"], "new": True}]
    server.answers["POST", "/api/v1/whatif"] = (200, {**NOTHING, "starts": starts})
    code, out, _ = dgpu("--server", server.url, "submit", "--clean-env", "--dry-run", "-G", "2", "--", "true")
    assert (code, out) == (0, "task-8 (new) would start now on n1\n")
    assert server.sent("POST", "/api/v1/whatif") == [
        {"submit": {"task": {"command": ["true"], "gpu_count": 2}}}
    ]
    assert server.sent("POST", "/api/v1/tasks") == []


def test_a_submit_that_would_wait_is_0_and_says_why_and_whom_it_delays(dgpu, server):
    waits = [
        {
            "task_id": "task-8",
            "expected_start": None,
            "blockers": [{"code": "x", "detail": "2 GPUs are busy"}],
        }
    ]
    delays = [
        {"task_id": "task-3", "before": "2026-05-04T10:00:00.000Z", "after": None, "seconds": None},
        {
            "task_id": "task-4",
            "before": "2026-05-04T10:00:00.000Z",
            "after": "2026-05-04T10:01:00.000Z",
            "seconds": 60,
        },
    ]
    server.answers["POST", "/api/v1/whatif"] = (200, {**NOTHING, "waits": waits, "delays": delays})
    code, out, _ = dgpu("--server", server.url, "submit", "--dry-run", "--count", "3", "--", "true")
    assert code == 0
    lines = out.splitlines()
    assert lines[:2] == ["task-8 (new) would wait; expected start: unknown", "  - 2 GPUs are busy"]
    assert lines[2].startswith("task-3 would start at an unknown time")
    assert lines[3].startswith("task-4 would start 1m00s later")
    assert server.sent("POST", "/api/v1/whatif")[0]["submit"]["count"] == 3


def test_a_submit_that_would_be_refused_is_6(dgpu, server):
    rejected = problem(422, "never_fits", "Asks for 9 GPUs on one node; the largest node has 8.")
    server.answers["POST", "/api/v1/whatif"] = (200, {**NOTHING, "rejected": rejected})
    code, out, err = dgpu("--server", server.url, "submit", "--dry-run", "-G", "9", "--", "true")
    assert (code, out) == (6, "")
    assert "it would be refused: Asks for 9 GPUs" in err
    code, out, _ = dgpu("--server", server.url, "--json", "submit", "--dry-run", "-G", "9", "--", "true")
    assert (code, json.loads(out)["rejected"]["code"]) == (6, "never_fits")


def test_bad_flags_are_2(dgpu, server):
    wrong = problem(400, "invalid_field", "submit.task.gpu_count: Expected a whole number.")
    server.answers["POST", "/api/v1/whatif"] = (400, wrong)
    assert dgpu("--server", server.url, "submit", "--dry-run", "-G", "-1", "--", "true")[0] == 2


def test_a_drain_can_be_tried_first(dgpu, server):
    stops = [{"task_id": "task-2", "node": "n1", "reason": "quota"}]
    server.answers["POST", "/api/v1/whatif"] = (200, {**NOTHING, "stops": stops})
    code, out, _ = dgpu("--server", server.url, "nodes", "drain", "--dry-run", "n1")
    assert (code, out) == (0, "task-2 on n1 would be stopped (quota)\n")
    assert server.sent("POST", "/api/v1/whatif") == [{"drain": "n1"}]
    assert server.sent("POST", "/api/v1/nodes/n1/drain") == []
    server.answers["POST", "/api/v1/whatif"] = (200, NOTHING)
    assert (
        dgpu("--server", server.url, "nodes", "drain", "--dry-run", "n1")[1]
        == "Nothing would change for any task.\n"
    )
    rejected = problem(404, "unknown_node", "There is no node n9.")
    server.answers["POST", "/api/v1/whatif"] = (200, {**NOTHING, "rejected": rejected})
    assert dgpu("--server", server.url, "nodes", "drain", "--dry-run", "n9")[0] == 5
    assert dgpu("--server", server.url, "nodes", "drain", "--dry-run", "n1", "n2")[0] == 2
